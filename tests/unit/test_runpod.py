"""Pod templates, and their way into an account of a stand-in that checks the documented schema."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.releases import T130
from tests.runpod_stub import KEY, Account, runpod
from tests.unit.fakes import FakeRunner, axes
from torch_images.build import labels
from torch_images.build.plan import plan_images
from torch_images.cli import program, publish_tasks, report, verb
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import NetworkError, UsageError
from torch_images.host.image_info import ImageInfo
from torch_images.host.network import Network
from torch_images.locks.image_lock import image_lock
from torch_images.publish import registry
from torch_images.publish.registry import Published, is_public
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
from torch_images.publish.tag_rules import TagTarget
from torch_images.verify.identify import VerifiedImage
from torch_images.verify.verify import VerifyReport

WHERE = "ghcr.io/me"
# What hosts report whose driver runs CUDA 13.0 natively: 610 says 13.3, 620 says 13.5.
NEWER = "13.0 13.1 13.2 13.3 13.4 13.5"


def verified_image(
    config: Config, root: Path, cuda: str, *, compat: str = "without", variant: str = "pod"
) -> VerifiedImage:
    """An image of 5.45 GB that serves all architectures."""
    spec = choose(config, cuda=cuda, variant=variant, compat=compat)
    [planned] = plan_images(config, [spec], root, root / "locks")
    label = labels.write(config, planned)
    info = ImageInfo(id="sha256:a", size=5_450_000_000, labels=label, config={}, created="")
    seen = {"torch": f"{T130}+cu130", "cuda": "13.0", "triton": "3.6.0"}
    report = VerifyReport(digest="sha256:a", id="", suite="", checks=(), observed=seen, seconds=0)
    return VerifiedImage(plan=planned, info=info, report=report)


def pushed(digest: str = "sha256:a") -> TagTarget:
    """What a registry has under the name of the image."""
    return TagTarget(digest=digest, torch=T130, created="2026-11-20")


def pod_image(
    config: Config, root: Path, cuda: str, *, compat: str = "without", variant: str = "pod"
) -> PodImage:
    image = verified_image(config, root, cuda, compat=compat, variant=variant)
    return built(config, image, WHERE, lambda _: pushed())


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
    pods = dataclasses.replace(config.pods, api=f"{account.url}/v2")
    return Templates(dataclasses.replace(config, pods=pods), key, Network())


def test_a_template_follows_the_image(config: Config, root: Path) -> None:
    image = verified_image(config, root, "13.0")
    found = body(config, built(config, image, WHERE, lambda _: pushed()))
    assert found["name"] == "torch-images/torch-cu130:pod"
    version = image.info.labels["org.opencontainers.image.version"]
    assert found["image"] == f"ghcr.io/me/torch-cu130:{version}"
    assert found["disk"] == 6 + 20
    assert found["mounts"] == {"persistent": {"size": 20, "path": "/workspace"}}
    # Its command, which arguments would replace; key and password are for what it starts.
    assert (found["args"], found["startSsh"], found["startJupyter"]) == ("", True, True)
    assert "registry" not in found  # so that a template keeps the credentials that it has
    private = body(config, pod_image(config, root, "13.0"), credentials="cred_1")
    assert private == {**found, "registry": "cred_1"}


def test_only_an_image_that_the_registry_has(config: Config, root: Path) -> None:
    image = verified_image(config, root, "13.0")
    asked: list[str] = []

    def lookup(name: str) -> None:
        asked.append(name)

    name = f"ghcr.io/me/torch-cu130:{image.info.labels['org.opencontainers.image.version']}"
    with pytest.raises(UsageError) as caught:
        built(config, image, WHERE, lookup)
    assert asked == [name]
    assert str(caught.value) == (
        f"{name} is not in its registry, so no pod can pull it; run `invoke push "
        f"{image.plan.spec.id} --registry ghcr.io/me` first"
    )
    with pytest.raises(UsageError, match="is another image in the registry than here; for a"):
        built(config, image, WHERE, lambda _: pushed("sha256:b"))


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"cuda": "13.0", "variant": "runtime"}, "--cuda 13.0 --torch 2.14.1"),
        ({"cuda": "13.0", "compat": "with"}, "--cuda 13.0 --torch 2.14.1"),
        ({"cuda": "13.0", "arch": "12.0"}, "--cuda 13.0 --arch 12.0 --torch 2.14.1"),
        # Neither vLLM's release of torch nor CUDA 12.8 has an image for pods.
        ({"cuda": "13.0", "variant": "vllm"}, "--cuda 13.0 --torch 2.14.1"),
        ({"cuda": "12.8", "arch": "12.0"}, "--cuda 13.0 --torch 2.14.1"),
    ],
)
def test_an_image_without_sshd_is_refused_with_the_build_that_has_it(
    config: Config, root: Path, chosen: dict[str, str], words: str
) -> None:
    """The command is one that builds: it names an image of variant pod."""
    spec = choose(config, **chosen)
    with pytest.raises(UsageError) as caught:
        in_registry(config, "ghcr.io/you/x", published(config, root, id=spec.id, torch=spec.torch))
    message, _, command = str(caught.value).partition("; build an image with them: `invoke build ")
    assert message == (
        f"{spec.id} has no sshd (port 22) and no JupyterLab (port 8888), so nobody could connect to "
        "its pod"
    )
    assert command.startswith(words)
    found = choose(config, **axes(shlex.split(command.removesuffix("`"))))
    assert (found.variant.name, found.compat) == ("pod", spec.compat)
    image_lock(config, found, root / "locks")
    line = f"error: {caught.value}".replace("`invoke ", "`./inv ")
    assert len(line) <= 300  # longer ones are cut


def test_an_image_that_no_host_can_run_is_refused(config: Config, root: Path) -> None:
    """RunPod takes an empty list for every host."""
    old = dataclasses.replace(config.pods, hosts=(("12.0", "525"),))
    ways = "; use an image of an older CUDA version"
    for compat, more in (("without", ", or one with the compat library: --compat"), ("with", "")):
        image = pod_image(config, root, "13.0", compat=compat)
        with pytest.raises(UsageError, match="works on none of the hosts that ") as caught:
            body(dataclasses.replace(config, pods=old), image)
        assert str(caught.value).endswith(f"{ways}{more}")


@pytest.mark.parametrize(
    ("cuda", "compat", "geforce", "wanted"),
    [
        # 560 is no branch that the compat library of 13.0 knows, nor are 525, 530, 545 and 555.
        ("13.0", "with", False, f"12.2 12.4 12.7 12.8 12.9 {NEWER}"),
        ("13.0", "with", True, NEWER),
        ("13.0", "without", False, NEWER),
        # From 525 on 12.8 runs by minor-version compatibility.
        ("12.8", "with", True, f"12.0 12.1 12.2 12.3 12.4 12.5 12.6 12.7 12.8 12.9 {NEWER}"),
    ],
)
def test_the_filter_leaves_in_whom_compat_serves(
    config: Config, root: Path, cuda: str, compat: str, geforce: bool, wanted: str
) -> None:
    image = pod_image(config, root, "13.0", compat=compat)
    image = dataclasses.replace(image, spec=choose(config, cuda=cuda, compat=compat))
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
    spec = choose(config, cuda="13.0", arch=arch, compat="with")
    image = dataclasses.replace(pod_image(config, root, "13.0", compat="with"), spec=spec)
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
    assert "not verified" not in readme(config, pod_image(config, root, "13.0"), local)


def test_the_readme_says_for_which_machines_it_is(config: Config, root: Path) -> None:
    plain, compat = (pod_image(config, root, "13.0", compat=c) for c in ("without", "with"))
    text = readme(config, plain, body(config, plain))
    assert f"| Machines | CUDA {NEWER.replace(' ', ', ')} |" in text
    assert "for older ones, with NVIDIA's compat library, is torch-cu130:pod-compat. " in text
    other = pod_image(config, root, "13.2")  # the catalogue has no such image with the library
    text = readme(config, other, body(config, other))
    assert "compat" not in text
    assert "one of these versions; older ones have a driver too old. " in text
    template = body(config, compat)
    assert template["name"] == "torch-images/torch-cu130:pod-compat"
    text = readme(config, compat, template)
    assert "| Machines | CUDA 12.2, 12.4, " in text
    assert "it uses NVIDIA's compat library where the driver is older than its CUDA v" in text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"id": ""}, "'ghcr.io/you/x' was not built by torch-images; it has no label"),
        ({"id": "cu130-x\x1b[2J"}, r"can no longer be built: 'cu130-x\\x1b\[2J' names no imag"),
        ({"torch": "1.0.0"}, "contradict: torch 1.0.0, but cu130-torch"),
        ({"torch": ""}, "contradict: torch none, but"),
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
    identifier = there.save(template, None)
    there.save({"name": "another", "image": "x"}, None)
    found = there.find(template["name"])
    assert found
    assert changes(template, found) == []
    newer = {**template, "image": "ghcr.io/me/newer", "disk": 30}
    assert changes(newer, found) == [
        f'image: "{template["image"]}" -> "ghcr.io/me/newer"',
        "disk: 26 -> 30",
    ]
    account.templates[identifier]["registry"] = "cred_1"
    assert there.save(newer, found) == identifier
    assert len(account.templates) == 2
    assert account.templates[identifier]["image"] == "ghcr.io/me/newer"
    assert account.templates[identifier]["registry"] == "cred_1"
    assert {asked.split()[1].split("/")[1] for asked in account.asked} == {"v2"}


def test_what_passes_is_tried_again_but_nothing_is_created_twice(
    config: Config, account: Account
) -> None:
    account.failures = [429, 503]
    assert templates(config, account).find("x") is None
    assert len(account.asked) == 3
    account.failures, account.asked = [503], []
    with pytest.raises(NetworkError, match="RunPod answers 503: as the test wants it; try later"):
        templates(config, account).save({"name": "a", "image": "b"}, None)
    assert account.asked == ["POST /v2/templates"]


def test_refusals_are_clear_and_hide_the_key(config: Config, root: Path, account: Account) -> None:
    wrong = templates(config, account, "rpa_WRONG")
    with pytest.raises(UsageError, match="refuses RUNPOD_API_KEY: missing bearer token") as caught:
        wrong.find("x")
    assert "rpa_WRONG" not in str(caught.value)
    with pytest.raises(UsageError) as caught:
        templates(config, account).save({"name": "a", "image": "b", "disk": -1, "x": 1}, None)
    assert sorted(str(caught.value).partition("the template: ")[2].split("; ")) == [
        "$.disk: -1 is less than the minimum of 1",
        "$: additional properties 'x' not allowed",
    ]
    with pytest.raises(UsageError, match="'readme' not allowed"):
        templates(config, account).save({"name": "a", "image": "b", "readme": "x"}, None)
    for name in ("one", "two"):
        account.templates[name] = {"id": name, "name": "same"}
    with pytest.raises(UsageError, match="several templates are called 'same': one, two; remove"):
        templates(config, account).find("same")


def test_nobody_there(config: Config, account: Account) -> None:
    pods = dataclasses.replace(config.pods, api="http://127.0.0.1:1/v2")
    there = Templates(dataclasses.replace(config, pods=pods), KEY, Network())
    there._session.mount("http://", type(there._session.adapters["https://"])())
    with pytest.raises(NetworkError, match=r"RunPod could not be reached: .*refused"):
        there.find("x")


def test_the_retired_api_is_named(config: Config, account: Account) -> None:
    pods = dataclasses.replace(config.pods, api=f"{account.url}/v1")
    there = Templates(dataclasses.replace(config, pods=pods), KEY, Network())
    with pytest.raises(UsageError, match=r"RunPod answers 410 at .*/v1: .*; give pods\.api in"):
        there.find("x")


def test_credentials_are_those_of_the_account(config: Config, account: Account) -> None:
    there = templates(config, account)
    with pytest.raises(UsageError, match="no registry credentials with id 'x'; it has none; add"):
        there.require_credentials("x")
    for identifier, name in (("c1", "hub"), ("c2", "ghcr\x1b[2J")):
        account.registries[identifier] = {"id": identifier, "name": name}
    there.require_credentials("c2")
    with pytest.raises(UsageError) as caught:
        there.require_credentials("hub")
    assert r"it has c1 (hub), c2 (ghcr\x1b[2J); add some at https://con" in str(caught.value)


REFUSES = (1, "ERROR: failed to authorize: failed to fetch anonymous token: 401 Unauthorized\n")
ALONE = "docker buildx imagetools inspect --raw"


@pytest.mark.parametrize(
    ("answer", "public"),
    [
        (REFUSES, False),
        ((1, "ERROR: pull access denied: insufficient_scope: authorization failed"), False),
        ((0, "{}"), True),
        ((1, "ERROR: dial tcp: i/o timeout"), True),
    ],
)
def test_public_is_what_everybody_may_pull(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: tuple[int, str], public: bool
) -> None:
    """It is asked without the user's credentials, and with the plugins that lie beside them."""
    seen: dict[str, Any] = {}

    class Recording(FakeRunner):
        def run(self, command: Any, **options: Any) -> Any:
            folder = Path(options["env"]["DOCKER_CONFIG"])
            seen.update(options["env"], files=sorted(path.name for path in folder.iterdir()))
            seen["buildx"] = (folder / "cli-plugins" / "docker-buildx").read_text()
            return super().run(command, **options)

    (tmp_path / "cli-plugins").mkdir()
    (tmp_path / "cli-plugins" / "docker-buildx").write_text("buildx")
    (tmp_path / "config.json").write_text('{"auths": {"ghcr.io": {"auth": "secret"}}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert is_public("ghcr.io/me/x:y", Recording({ALONE: answer})) is public
    assert (seen["files"], seen["buildx"]) == (["cli-plugins"], "buildx")
    assert seen["DOCKER_AUTH_CONFIG"] is None


@pytest.fixture
def run(config: Config, root: Path, account: Account, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`./inv runpod` for a published image: a function of its options; `private` where it is."""
    pods = dataclasses.replace(config.pods, api=f"{account.url}/v2")
    monkeypatch.setattr(verb, "config", lambda: dataclasses.replace(config, pods=pods))
    monkeypatch.setattr(registry, "published", lambda *_, **__: published(config, root))
    monkeypatch.setenv("RUNPOD_API_KEY", KEY)

    def call(*, private: bool = False, **options: Any) -> int:
        monkeypatch.setattr(registry, "is_public", lambda *_: not private)
        words = {"image": "ghcr.io/me/torch-cu130:pod", **options}
        return program.perform(publish_tasks.runpod, words)

    return call


def test_applied_it_prints_the_readme_to_paste(
    run: Any, account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    run(apply=True, dry_run=True)
    assert "POST /v2/templates" not in account.asked
    assert "paste" not in capsys.readouterr().err
    run(apply=True)
    said = capsys.readouterr()
    assert said.out == "tpl_0\n"
    assert (
        f"paste this one into the template:\n\n# {account.templates['tpl_0']['name']}\n" in said.err
    )
    run(apply=True, json=True)
    done = json.loads(capsys.readouterr().out)
    assert done["id"] == "tpl_0"
    assert report.readme(done["readme"]) in said.err


def test_a_private_image_needs_credentials(
    run: Any, account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(private=True, apply=True) == 2
    assert "torch-cu130:pod is not public" in capsys.readouterr().err
    assert run(private=True, apply=True, credentials="c1") == 2
    assert "no registry credentials with id 'c1'" in capsys.readouterr().err
    assert not account.templates
    account.registries["c1"] = {"id": "c1", "name": "ghcr"}
    run(private=True, apply=True, credentials="c1")
    assert account.templates["tpl_0"]["registry"] == "c1"
    capsys.readouterr()
