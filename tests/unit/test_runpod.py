"""Pod templates of RunPod, whose documented schema they follow."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.unit.conftest import T130
from tests.unit.fakes import invoke
from torch_images.build import labels
from torch_images.build.plan import plan_images
from torch_images.cli import program, publish_tasks
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.publish.runpod import PodImage, body, hosts, pod_image
from torch_images.publish.tag_rules import Manifest

REFERENCE = "ghcr.io/me/torch-cu130:pod"
PULL = 2_440_000_000
SCHEMA = Path(__file__).parents[1] / "fixtures" / "runpod-template.json"
# What hosts report whose driver runs CUDA 13.0 natively: 610 says 13.3, 620 says 13.5.
NEWER = "13.0 13.1 13.2 13.3 13.4 13.5"


def published(
    config: Config, root: Path, cuda: str = "13.0", *, older: str = "without", **changes: str
) -> Manifest:
    """An image that serves all architectures, as a registry describes it."""
    spec = choose(config, cuda=cuda, variant="pod", compat=older)
    [planned] = plan_images(config, [spec], root, root / "locks")
    label = dict(labels.write(config, planned)) | {
        f"io.github.torch-images.{name}": text for name, text in changes.items()
    }
    return Manifest(
        platform="linux/amd64", digest="sha256:a", created="2026-11-20", labels=labels.read(label)
    )


def pod(config: Config, root: Path, cuda: str, *, compat: str = "without") -> PodImage:
    return pod_image(config, REFERENCE, published(config, root, cuda, older=compat), PULL)


def test_a_template_follows_the_image(config: Config, root: Path) -> None:
    template = body(config, pod(config, root, "13.0"))
    jsonschema.validate(template, json.loads(SCHEMA.read_text()))
    assert template["name"] == "torch-images/torch-cu130:pod"
    assert template["image"] == REFERENCE
    assert template["disk"] == 8 + 20
    assert template["mounts"] == {"persistent": {"size": 20, "path": "/workspace"}}
    # Its command, which arguments would replace; key and password are for what it starts.
    assert (template["args"], template["startSsh"], template["startJupyter"]) == ("", True, True)
    assert "registry" not in template  # so that a template keeps the credentials that it has
    private = body(config, pod(config, root, "13.0"), credentials="cred_1")
    assert private == {**template, "registry": "cred_1"}


def test_an_image_without_sshd_is_refused_with_the_build_that_has_it(
    config: Config, root: Path
) -> None:
    spec = choose(config, cuda="13.0", variant="runtime")
    image = published(config, root, id=spec.id, torch=spec.torch)
    with pytest.raises(UsageError, match=r"no sshd.*no JupyterLab.*build --variant pod"):
        pod_image(config, "ghcr.io/you/x", image, PULL)


def test_body_refuses_an_image_without_hosts(config: Config, root: Path) -> None:
    """RunPod takes an empty list for every host."""
    old = dataclasses.replace(config.pods, hosts=(("12.0", "525"),))
    ways = "; use an image of an older CUDA version"
    for compat, more in (("without", ", or one with the compat library: --compat"), ("with", "")):
        image = pod(config, root, "13.0", compat=compat)
        with pytest.raises(UsageError, match="works on none of the hosts that ") as caught:
            body(dataclasses.replace(config, pods=old), image)
        assert str(caught.value).endswith(f"{ways}{more}")


@pytest.mark.parametrize(
    ("cuda", "compat", "geforce", "versions"),
    [
        # 560 is no branch that the compat library of 13.0 knows, nor are 525, 530, 545 and 555.
        ("13.0", "with", False, f"12.2 12.4 12.7 12.8 12.9 {NEWER}"),
        ("13.0", "with", True, NEWER),
        ("13.0", "without", False, NEWER),
        # From 525 on 12.8 runs by minor-version compatibility.
        ("12.8", "with", True, f"12.0 12.1 12.2 12.3 12.4 12.5 12.6 12.7 12.8 12.9 {NEWER}"),
    ],
)
def test_hosts_include_those_that_compat_serves(
    config: Config, root: Path, cuda: str, compat: str, geforce: bool, versions: str
) -> None:
    image = pod(config, root, "13.0", compat=compat)
    image = dataclasses.replace(image, spec=choose(config, cuda=cuda, compat=compat))
    template = body(config, image, geforce=geforce)
    assert template["allowedCudaVersions"] == versions.split()
    assert template["name"].endswith(" geforce") == geforce


@pytest.mark.parametrize(
    ("arch", "geforce", "versions"),
    [
        ("9.0", False, f"12.2 12.4 12.7 12.8 12.9 {NEWER}"),
        # No older driver knows these GPUs, and a compat library does not help.
        ("12.0", False, f"12.8 12.9 {NEWER}"),
        ("12.0", True, NEWER),
    ],
)
def test_hosts_have_a_driver_that_supports_a_gpu_of_the_image(
    config: Config, root: Path, arch: str, geforce: bool, versions: str
) -> None:
    spec = choose(config, cuda="13.0", arch=arch, compat="with")
    image = dataclasses.replace(pod(config, root, "13.0", compat="with"), spec=spec)
    assert hosts(config, image, geforce=geforce) == versions.split()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"id": ""}, "'ghcr.io/you/x' was not built by torch-images; it has no label"),
        ({"id": "cu130-x\x1b[2J"}, r"can no longer be built: 'cu130-x\\x1b\[2J' names no imag"),
        ({"compat": "x"}, "no valid compat version: x"),
    ],
)
def test_pod_image_refuses_a_foreign_image(
    config: Config, root: Path, changes: dict[str, str], text: str
) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        pod_image(config, "ghcr.io/you/x", published(config, root, **changes), PULL)
    assert str(caught.value).isprintable()


def test_the_verb_prints_a_template_and_the_command_that_sends_it(
    config: Config, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publish_tasks, "of_platform", lambda *_: published(config, root))
    monkeypatch.setattr(publish_tasks, "pull_size", lambda *_: PULL)
    monkeypatch.setattr(publish_tasks, "is_public", lambda *_: False)
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_SECRET")
    monkeypatch.setenv("TORCH_IMAGES_CONFIG", str(root / "images.yaml"))
    words = ["runpod", "--image", "torch-cu130:pod", "--registry", "ghcr.io/me"]
    assert program.run(words) == 2
    assert "torch-cu130:pod is not public" in capsys.readouterr().err
    assert program.run([*words, "--credentials", "c1"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["registry"] == "c1"
    assert f"--json @pod.json {config.pods.api}/templates\n" in printed.err
    assert "SECRET" not in printed.out + printed.err


@pytest.mark.parametrize(
    ("words", "image"),
    [
        ([f"cu130-torch{T130}-trixie-pod"], f"ghcr.io/me/torch-cu130:{T130}-pod"),
        (["torch-cu130:pod"], "ghcr.io/me/torch-cu130:pod"),
        (["--image", "torch-cu130:pod"], "ghcr.io/me/torch-cu130:pod"),
        ([], f"ghcr.io/me/torch-cu130:{T130}-pod"),
    ],
)
def test_it_takes_the_names_that_other_verbs_take(
    root: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], image: str
) -> None:
    def ask(call: Any, **_: object) -> None:
        raise UsageError(call.args[0])

    monkeypatch.setattr(publish_tasks, "retry", ask)
    done = invoke(root, "runpod", *words, "--registry", "ghcr.io/me")
    assert done.stderr == f"error: {image}\n"
