"""Pod templates, and their way into an account of a stand-in that checks the documented schema."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.releases import T130
from tests.runpod_stub import KEY, Account, runpod
from torch_images.build import labels
from torch_images.build.plan import plan_images
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import NetworkError, UsageError
from torch_images.host.image_info import ImageInfo
from torch_images.host.network import Network
from torch_images.publish.registry import Published
from torch_images.publish.runpod import (
    PodImage,
    Templates,
    body,
    built,
    changes,
    hosts,
    in_registry,
    readme,
)
from torch_images.verify.identify import VerifiedImage
from torch_images.verify.verify import VerifyReport

WHERE = "ghcr.io/me"
# What hosts report whose driver runs CUDA 13.0 natively: 610 says 13.3, 620 says 13.5.
NEWER = "13.0 13.1 13.2 13.3 13.4 13.5"


def verified_image(
    config: Config, root: Path, cuda: str, *, compat: bool = True, variant: str = "runtime"
) -> VerifiedImage:
    """An image of 5.45 GB that serves all architectures."""
    [planned] = plan_images(
        config, [choose(config, cuda=cuda, variant=variant)], root, root / "locks"
    )
    label = labels.write(config, planned)
    label |= {} if compat else {"io.github.torch-images.compat": "none"}
    info = ImageInfo(id="sha256:a", size=5_450_000_000, labels=label, config={}, created="")
    seen = {"torch": f"{T130}+cu130", "cuda": "13.0", "triton": "3.6.0"}
    report = VerifyReport(digest="sha256:a", id="", suite="", checks=(), observed=seen, seconds=0)
    return VerifiedImage(plan=planned, info=info, report=report)


def pod_image(
    config: Config, root: Path, cuda: str, *, compat: bool = True, variant: str = "runtime"
) -> PodImage:
    return built(verified_image(config, root, cuda, compat=compat, variant=variant), WHERE)


def published(config: Config, root: Path, **changes: str) -> Published:
    """The same image as a registry describes it, 2.44 GB to pull."""
    label = dict(verified_image(config, root, "13.0").info.labels) | {
        f"io.github.torch-images.{name}": text for name, text in changes.items()
    }
    return Published(digest="sha256:a", labels=labels.read(label), size=2_440_000_000)


@pytest.fixture
def account() -> Iterator[Account]:
    with runpod() as found:
        yield found


def templates(config: Config, account: Account, key: str = KEY) -> Templates:
    api, readme_api = f"{account.url}/v2", f"{account.url}/v1"
    pods = dataclasses.replace(config.pods, api=api, readme_api=readme_api)
    return Templates(dataclasses.replace(config, pods=pods), key, Network())


def test_a_template_follows_the_image(config: Config, root: Path) -> None:
    image = verified_image(config, root, "13.0", variant="pod")
    found = body(config, built(image, WHERE))
    assert found["name"] == "torch-images/torch-cu130:pod"
    version = image.info.labels["org.opencontainers.image.version"]
    assert found["image"] == f"ghcr.io/me/torch-cu130:{version}"
    assert found["disk"] == 6 + 20
    assert found["mounts"] == {"persistent": {"size": 20, "path": "/workspace"}}
    # Its command, which arguments would replace; key and password are for what it starts.
    assert (found["args"], found["startSsh"], found["startJupyter"]) == ("", True, True)


@pytest.mark.parametrize(
    ("cuda", "compat", "geforce", "wanted"),
    [
        # 560 is no branch that the compat library of 13.0 knows, nor are 525, 530, 545 and 555.
        ("13.0", True, False, f"12.2 12.4 12.7 12.8 12.9 {NEWER}"),
        ("13.0", True, True, NEWER),
        ("13.0", False, False, NEWER),
        # From 525 on 12.8 runs by minor version compatibility.
        ("12.8", True, True, f"12.0 12.1 12.2 12.3 12.4 12.5 12.6 12.7 12.8 12.9 {NEWER}"),
    ],
)
def test_the_filter_leaves_in_whom_compat_serves(
    config: Config, root: Path, cuda: str, compat: bool, geforce: bool, wanted: str
) -> None:
    image = pod_image(config, root, cuda, compat=compat)
    found = body(config, image, geforce=geforce)
    assert found["allowedCudaVersions"] == wanted.split()
    assert found["name"].endswith(" geforce") == geforce


@pytest.mark.parametrize(
    ("arch", "geforce", "wanted"),
    [
        ("9.0", False, f"12.2 12.4 12.7 12.8 12.9 {NEWER}"),
        # No older driver knows these GPUs, and a compat library does not help.
        ("12.0", False, f"12.8 12.9 {NEWER}"),
        ("10.3", False, f"12.9 {NEWER}"),
        ("12.0", True, NEWER),
    ],
)
def test_hosts_have_a_driver_that_supports_a_gpu_of_the_image(
    config: Config, root: Path, arch: str, geforce: bool, wanted: str
) -> None:
    image = dataclasses.replace(
        pod_image(config, root, "13.0"), spec=choose(config, cuda="13.0", arch=arch)
    )
    assert hosts(config, image, geforce=geforce) == wanted.split()


def test_a_published_image_needs_no_build(config: Config, root: Path) -> None:
    """What the template says is what a build here says, but for size, Triton and a warning."""
    reference = f"ghcr.io/you/torch-cu130:sm120@sha256:{'a' * 64}"
    image = in_registry(config, reference, published(config, root))
    template, local = body(config, image), body(config, pod_image(config, root, "13.0"))
    assert template == {**local, "image": reference, "disk": 8 + 20}
    text = readme(config, image, template)
    assert "it was not verified where this template was made" in text
    assert f"| PyTorch | {T130} |" in text
    lacking = in_registry(config, "ghcr.io/you/x", published(config, root, compat="none"))
    assert body(config, lacking)["allowedCudaVersions"] == NEWER.split()
    assert "not verified" not in readme(config, pod_image(config, root, "13.0"), local)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"id": ""}, "'ghcr.io/you/x' was not built by torch-images; it has no label"),
        ({"id": "cu130-x\x1b[2J"}, r"cannot be built any more: 'cu130-x\\x1b\[2J' names no imag"),
        ({"torch": "1.0.0"}, "says that it has torch 1.0.0, and that it is cu130-torch"),
        ({"torch": ""}, "says that it has torch none"),
    ],
)
def test_what_is_not_ours_is_refused(
    config: Config, root: Path, changes: dict[str, str], text: str
) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        in_registry(config, "ghcr.io/you/x", published(config, root, **changes))
    assert str(caught.value).isprintable()


def test_created_once_then_changed(config: Config, root: Path, account: Account) -> None:
    image = pod_image(config, root, "13.0")
    template, there = body(config, image), templates(config, account)
    assert there.find(template["name"]) is None
    identifier = there.save(template, readme(config, image, template), None)
    there.save({"name": "another", "image": "x"}, "", None)
    found = there.find(template["name"])
    assert found
    assert changes(template, found) == []
    newer = {**template, "image": "ghcr.io/me/newer", "disk": 30}
    assert changes(newer, found) == [
        f'image: "{template["image"]}" -> "ghcr.io/me/newer"',
        "disk: 26 -> 30",
    ]
    assert there.save(newer, "new", found) == identifier
    assert len(account.templates) == 2
    assert account.templates[identifier]["image"] == "ghcr.io/me/newer"
    assert account.readmes[identifier] == "new"


def test_what_passes_is_tried_again_but_nothing_is_created_twice(
    config: Config, account: Account
) -> None:
    account.failures = [429, 503]
    assert templates(config, account).find("x") is None
    assert len(account.asked) == 3
    account.failures, account.asked = [503], []
    with pytest.raises(NetworkError, match="RunPod answers 503: as the test wants it; try later"):
        templates(config, account).save({"name": "a", "image": "b"}, "", None)
    assert account.asked == ["POST /v2/templates"]


def test_refusals_are_clear_and_hide_the_key(config: Config, root: Path, account: Account) -> None:
    wrong = templates(config, account, "rpa_WRONG")
    with pytest.raises(UsageError, match="refuses RUNPOD_API_KEY: missing bearer token") as caught:
        wrong.find("x")
    assert "rpa_WRONG" not in str(caught.value)
    with pytest.raises(UsageError, match=r"does not take the template: .*disk.*unexpected|-1"):
        templates(config, account).save({"name": "a", "image": "b", "disk": -1}, "", None)
    for name in ("one", "two"):
        account.templates[name] = {"id": name, "name": "same"}
    with pytest.raises(UsageError, match="several templates are called 'same': one, two; remove"):
        templates(config, account).find("same")


def test_nobody_there(config: Config, account: Account) -> None:
    pods = dataclasses.replace(config.pods, api="http://127.0.0.1:1/v2")
    there = Templates(dataclasses.replace(config, pods=pods), KEY, Network())
    there._session.mount("http://", type(there._session.adapters["https://"])())
    with pytest.raises(NetworkError, match=r"RunPod could not be asked: .*refused"):
        there.find("x")
