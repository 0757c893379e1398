"""The verb `pick` as users call it; what it answers is tested in test_pick.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_images.build import labels
from torch_images.cli import program, verb
from torch_images.publish.tag_rules import Manifest, TagTarget

GPU = ("pick", "--gpu", "8xH100", "--driver", "R580", "--torch", "2.14.1")


@pytest.fixture
def run(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    monkeypatch.setenv("TORCH_IMAGES_CONFIG", str(root / "images.yaml"))

    def call(*words: str) -> str:
        assert program.run(words) == 0
        return capsys.readouterr().out

    return call


def test_first_line_builds_and_runs(run: Callable[..., str]) -> None:
    answer = json.loads(run(*GPU, "--json"))
    assert (answer["published"], answer["branch"]) == (False, "580")
    first, empty, release, *rest = run(*GPU).splitlines()
    assert first == answer["command"] == f"{answer['build']} && {answer['run']}"
    assert first.startswith("./inv build --cuda 13.0 ")
    assert empty == ""
    assert release == f"  torch 2.14.1 for linux/amd64: {answer['proof']}"
    assert "  assuming 580.65.06, the oldest 580 driver" in rest


def test_first_line_locks_inputs_without_a_lock(run: Callable[..., str]) -> None:
    """It printed a build that ended with exit code 3."""
    first, *_ = run("pick", "RTX 5090", "570", "--variant", "pod").splitlines()
    lock, build, start = first.split(" && ")
    identifier = lock.removeprefix("./inv lock --select ")
    assert build == "./inv build --cuda 12.8 --arch 12.0 --variant pod"
    assert start == "docker run --rm --gpus all torch-cu128:sm120-pod"
    assert program.run(["render", identifier]) == 3


@pytest.mark.parametrize(("lines", "gpus"), [(1, ["L4"]), (2, ["L4", "H100"]), (0, [])])
def test_pick_without_words_asks_nvidia_smi(
    run: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: int,
    gpus: list[str],
) -> None:
    smi = tmp_path / "nvidia-smi"
    output = "NVIDIA L4, 580.95.05\nNVIDIA H100 80GB HBM3, 580.95.05\n"
    (tmp_path / "output").write_text("".join(output.splitlines(keepends=True)[:lines]))
    smi.write_text(f"#!/bin/sh\ncat {tmp_path}/output; [ -s {tmp_path}/output ]\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    if not gpus:
        assert program.run(["pick"]) == 2
        return
    answer = json.loads(run("pick", "--json", "--platform", "linux/amd64"))
    assert [gpu["name"] for gpu in answer["gpus"]] == gpus
    assert answer["driver"] == "580.95.05"


def test_command_is_bold_on_a_terminal(
    run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain, *_ = run(*GPU).splitlines()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(*GPU).splitlines()[0] == f"\x1b[1m{plain}\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(*GPU).splitlines()[0] == plain


@pytest.mark.parametrize("published", ["it", "another image", "nothing"])
def test_published_image_is_pulled(
    run: Callable[..., str], monkeypatch: pytest.MonkeyPatch, published: str
) -> None:
    answer = json.loads(run(*GPU, "--json", "--registry", "ghcr.io/me"))
    names = []

    def lookup(name: str) -> TagTarget | None:
        names.append(name)
        identifier = answer["id"] if published == "it" else "another"
        image_labels = labels.read({"io.github.torch-images.id": identifier})
        one = Manifest(platform="linux/amd64", digest="sha256:a", created="", labels=image_labels)
        return None if published == "nothing" else TagTarget(digest="sha256:a", manifests=(one,))

    monkeypatch.setattr(verb, "registry_lookup", lambda **_: lookup)
    first, _, line, *_ = run(*GPU, "--published", "--registry", "ghcr.io/me").splitlines()
    assert names == [answer["reference"]]
    assert (first == f"docker run --rm --gpus all {answer['reference']}") == (published == "it")
    assert (line == f"  {answer['reference']} is published") == (published == "it")
