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
LIMITS = {
    "limits": {"8.0": ["liba.so lacks 8.0", "libb.so lacks 8.0"], "9.0": ["libb.so lacks 9.0"]}
}

INFO: Any = load("scripts/image/commands/torch-info")


def run(
    image_json: dict[str, Any],
    *gpus: tuple[str, tuple[int, int]],
    words: tuple[str, ...] = (),
    folder: Path,
    patch: pytest.MonkeyPatch,
) -> None:
    """Run torch-info in an image whose image.json is `image_json`, with these GPUs."""
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
    (folder / "image.json").write_text(json.dumps(image_json))
    patch.setattr(INFO, "IMAGE", folder / "image.json")
    patch.setattr(sys, "argv", ["torch-info", *words])
    INFO.main()


@pytest.mark.parametrize("words", [(), ("--json",)])
@pytest.mark.parametrize(
    "error", [ImportError("undefined symbol:\n ncclX"), RuntimeError("cuDNN 9.24, found 9.1")]
)
def test_torch_info_with_a_broken_torch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    words: tuple[str, ...],
) -> None:
    def collect() -> None:
        raise error

    monkeypatch.setattr(INFO, "collect", collect)
    monkeypatch.setattr(INFO, "replaced", lambda _: ["rival replaced it"])
    with pytest.raises(SystemExit) as ended:
        run({}, folder=tmp_path, patch=monkeypatch, words=words)
    assert ended.value.code == 1
    output = capsys.readouterr().out
    problem = f"torch does not work: {' '.join(str(error).split())}"
    if words:
        assert json.loads(output) == {"replaced": ["rival replaced it"], "problem": problem}
    else:
        assert output.splitlines() == ["rival replaced it", problem]


@pytest.mark.parametrize(
    ("image_json", "gpus", "expected"),
    [
        ({}, (H100, RTX_5090), ["NVIDIA H100 80GB HBM3 (sm_90), NVIDIA GeForce RTX 5090 (sm_120)"]),
        ({}, (), ["no GPU visible"]),
        (
            LIMITS,
            (H100, RTX_5090, H100),
            [
                "NVIDIA H100 80GB HBM3 (sm_90), NVIDIA GeForce RTX 5090 (sm_120), "
                "NVIDIA H100 80GB HBM3 (sm_90)",
                "libb.so lacks 9.0",
            ],
        ),
        (
            LIMITS,
            (),
            ["no GPU visible", "liba.so lacks 8.0", "libb.so lacks 8.0", "libb.so lacks 9.0"],
        ),
    ],
)
def test_torch_info_lists_gpus_and_limits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    image_json: dict[str, Any],
    gpus: tuple[tuple[str, tuple[int, int]], ...],
    expected: list[str],
) -> None:
    run(image_json, *gpus, folder=tmp_path, patch=monkeypatch)
    _, arches, *lines = capsys.readouterr().out.splitlines()
    assert arches == "architectures: sm_80 sm_86 sm_90 sm_120"
    assert lines == [f"GPUs: {expected[0]}", *expected[1:]]
