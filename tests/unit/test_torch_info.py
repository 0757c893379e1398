"""What `torch-info` says of an image and its GPUs, with a torch that only answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scripts import load

COMPILED = ["sm_80", "sm_86", "sm_90", "sm_120"]
H100 = ("NVIDIA H100 80GB HBM3", (9, 0))
RTX_5090 = ("NVIDIA GeForce RTX 5090", (12, 0))
PRUNED = {"pruned": ["12.0"], "code": ["sm_120"], "images": {"9.0": "torch-cu130:sm90"}}
LIMITS = {
    "limits": {"8.0": ["liba.so lacks 8.0", "libb.so lacks 8.0"], "9.0": ["libb.so lacks 9.0"]}
}
LINE = (
    "this image has no code for NVIDIA H100 80GB HBM3 (9.0): it was pruned for 12.0; "
    "take torch-cu130:sm90, or an image for all architectures"
)


INFO: Any = load("scripts/image/commands/torch-info")


def run(
    told: dict[str, Any],
    *gpus: tuple[str, tuple[int, int]],
    words: tuple[str, ...] = (),
    folder: Path,
    patch: pytest.MonkeyPatch,
) -> None:
    """Run torch-info in an image whose image.json is `told`, with these GPUs."""
    cuda = SimpleNamespace(
        device_count=lambda: len(gpus),
        get_device_name=lambda index: gpus[index][0],
        get_device_capability=lambda index: gpus[index][1],
    )
    torch = SimpleNamespace(
        __version__="2.14.1+cu130",
        version=SimpleNamespace(cuda="13.0"),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91900)),
        cuda=cuda,
        _C=SimpleNamespace(_cuda_getArchFlags=lambda: " ".join(COMPILED)),
    )
    patch.setitem(sys.modules, "torch", torch)
    patch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.8.0"))
    (folder / "image.json").write_text(json.dumps(told))
    patch.setattr(INFO, "IMAGE", folder / "image.json")
    patch.setattr(sys, "argv", ["torch-info", *words])
    INFO.main()


@pytest.mark.parametrize(
    ("told", "gpus", "said"),
    [
        (
            {},
            (H100, RTX_5090),
            [
                "architectures: sm_80 sm_86 sm_90 sm_120",
                "GPUs: NVIDIA H100 80GB HBM3 (sm_90), NVIDIA GeForce RTX 5090 (sm_120)",
            ],
        ),
        (
            PRUNED,
            (RTX_5090, H100, H100),
            [
                "architectures: sm_120",
                "GPUs: NVIDIA GeForce RTX 5090 (sm_120), NVIDIA H100 80GB HBM3 (sm_90), "
                "NVIDIA H100 80GB HBM3 (sm_90)",
                LINE,
            ],
        ),
        (
            {},
            (("Tesla V100", (7, 0)),),
            [
                "architectures: sm_80 sm_86 sm_90 sm_120",
                "GPUs: Tesla V100 (sm_70)",
                "this image has no code for Tesla V100 (7.0): its torch was compiled for sm_80, "
                "sm_86, sm_90, sm_120; `./inv pick` names an image that has some",
            ],
        ),
        (
            {"pruned": ["8.9"], "code": ["sm_86"]},
            (("RTX 3090", (8, 6)),),
            ["architectures: sm_86", "GPUs: RTX 3090 (sm_86)"],
        ),
        (PRUNED, (), ["architectures: sm_120", "GPUs: no GPU visible"]),
        (
            LIMITS,
            (H100, RTX_5090, H100),
            [
                "architectures: sm_80 sm_86 sm_90 sm_120",
                "GPUs: NVIDIA H100 80GB HBM3 (sm_90), NVIDIA GeForce RTX 5090 (sm_120), "
                "NVIDIA H100 80GB HBM3 (sm_90)",
                "libb.so lacks 9.0",
            ],
        ),
        (
            LIMITS,
            (),
            [
                "architectures: sm_80 sm_86 sm_90 sm_120",
                "GPUs: no GPU visible",
                *("liba.so lacks 8.0", "libb.so lacks 8.0", "libb.so lacks 9.0"),
            ],
        ),
    ],
    ids=[
        *("served", "pruned", "too old", "same major version", "no GPU"),
        *("a library lacks code", "a library lacks code, and no GPU"),
    ],
)
def test_it_says_which_gpu_has_no_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    told: dict[str, Any],
    gpus: tuple[tuple[str, tuple[int, int]], ...],
    said: list[str],
) -> None:
    run(told, *gpus, folder=tmp_path, patch=monkeypatch)
    assert capsys.readouterr().out.splitlines()[1:] == said


def test_it_says_it_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(PRUNED, H100, words=("--json",), folder=tmp_path, patch=monkeypatch)
    found = json.loads(capsys.readouterr().out)
    assert (found["arches"], found["unserved"]) == (["sm_120"], [LINE])
    assert (found["gpus"], found["problem"]) == (["NVIDIA H100 80GB HBM3 (sm_90)"], None)
    assert found["limits"] == []
    run(LIMITS, H100, words=("--json",), folder=tmp_path, patch=monkeypatch)
    found = json.loads(capsys.readouterr().out)
    assert (found["unserved"], found["limits"]) == ([], ["libb.so lacks 9.0"])
