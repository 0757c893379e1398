"""Pod templates of RunPod, whose documented schema they follow."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest

from tests.unit.conftest import T130
from torch_images.build import labels
from torch_images.build.plan import plan_images
from torch_images.cli import program, publish_tasks
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.host.image_info import ImageInfo
from torch_images.publish import registry
from torch_images.publish.runpod import PodImage, body, built, hosts, in_registry, readme
from torch_images.publish.tag_rules import Manifest, TagTarget
from torch_images.verify.identify import VerifiedImage
from torch_images.verify.verify import VerifyReport

WHERE = "ghcr.io/me"
PULL = 2_440_000_000
SCHEMA = Path(__file__).parents[1] / "fixtures" / "runpod-template.json"
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


def published(config: Config, root: Path, digest: str = "sha256:a", **changes: str) -> Manifest:
    """The same image as a registry describes it."""
    label = dict(verified_image(config, root, "13.0").info.labels) | {
        f"io.github.torch-images.{name}": text for name, text in changes.items()
    }
    return Manifest(
        platform="linux/amd64", digest=digest, created="2026-11-20", labels=labels.read(label)
    )


def pod_image(
    config: Config, root: Path, cuda: str, *, compat: str = "without", variant: str = "pod"
) -> PodImage:
    image = verified_image(config, root, cuda, compat=compat, variant=variant)
    one = published(config, root)
    return built(config, image, WHERE, lambda _: TagTarget(digest="", manifests=(one,)))


def test_a_template_follows_the_image(config: Config, root: Path) -> None:
    image = verified_image(config, root, "13.0")
    found = body(config, pod_image(config, root, "13.0"))
    jsonschema.validate(found, json.loads(SCHEMA.read_text()))
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
    one = published(config, root, "sha256:b")
    with pytest.raises(UsageError, match="is another image in the registry than here; for a"):
        built(config, image, WHERE, lambda _: TagTarget(digest="sha256:b", manifests=(one,)))


def test_an_image_without_sshd_is_refused_with_the_build_that_has_it(
    config: Config, root: Path
) -> None:
    spec = choose(config, cuda="13.0", variant="runtime")
    image = published(config, root, id=spec.id, torch=spec.torch)
    with pytest.raises(UsageError, match=r"no sshd.*no JupyterLab.*build --variant pod"):
        in_registry(config, "ghcr.io/you/x", image, PULL)


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
    image = in_registry(config, reference, published(config, root), PULL)
    template, local = body(config, image), body(config, pod_image(config, root, "13.0"))
    assert template == {**local, "image": reference, "disk": 8 + 20}
    text = readme(config, image, template)
    assert "it was not verified where this template was made" in text
    assert f"| PyTorch | {T130} |" in text
    assert "not verified" not in readme(config, pod_image(config, root, "13.0"), local)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"id": ""}, "'ghcr.io/you/x' was not built by torch-images; it has no label"),
        ({"id": "cu130-x\x1b[2J"}, r"can no longer be built: 'cu130-x\\x1b\[2J' names no imag"),
        ({"torch": "1.0.0"}, "contradict: torch 1.0.0, compat none, but cu130-torch"),
        ({"torch": ""}, "contradict: torch none, compat none, but"),
        ({"compat": "x"}, "compat x, but"),
    ],
)
def test_what_is_not_ours_is_refused(
    config: Config, root: Path, changes: dict[str, str], text: str
) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        in_registry(config, "ghcr.io/you/x", published(config, root, **changes), PULL)
    assert str(caught.value).isprintable()


def test_the_verb_prints_a_template_and_the_command_that_sends_it(
    config: Config, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "of_platform", lambda *_: published(config, root))
    monkeypatch.setattr(registry, "pull_size", lambda *_: PULL)
    monkeypatch.setattr(registry, "is_public", lambda *_: False)
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_SECRET")
    monkeypatch.setenv("TORCH_IMAGES_CONFIG", str(root / "images.yaml"))
    words = {"image": "ghcr.io/me/torch-cu130:pod"}
    assert program.perform(publish_tasks.runpod, words) == 2
    assert "torch-cu130:pod is not public" in capsys.readouterr().err
    assert program.perform(publish_tasks.runpod, {**words, "credentials": "c1"}) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["registry"] == "c1"
    assert f"--json @pod.json {config.pods.api}/templates\n" in printed.err
    assert "SECRET" not in printed.out + printed.err
