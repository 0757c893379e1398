"""The verb `pick` as users call it; what it answers is tested in test_pick.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    assert first == answer["command"] == f"{answer['build']} && {answer['local']}"
    assert first.startswith("./inv build --cuda 13.0 ")
    assert empty == ""
    assert release == f"  torch 2.14.1 for linux/amd64: {answer['proof']}"
    assert "  assuming 580.65.06, the oldest 580 driver" in rest


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

    monkeypatch.setattr(verb, "registry_lookup", lambda _: lookup)
    first, _, line, *_ = run(*GPU, "--published", "--registry", "ghcr.io/me").splitlines()
    assert names == [answer["image"]]
    assert (first == answer["run"]) == (published == "it")
    assert (line == f"  {answer['image']} is published") == (published == "it")


def test_list_of_gpus(run: Callable[..., str]) -> None:
    heading, *lines = run("pick", "--list").splitlines()
    assert heading.startswith("Compute capability, ")
    assert " 12.1  Blackwell, from driver 575: GB10, DGX Spark" in lines
    assert any(line.startswith("  3.7  no image: K80; also p2") for line in lines)
    rows: list[dict[str, Any]] = json.loads(run("pick", "--list", "--json"))["gpu"]
    assert len(rows) == len(lines)
