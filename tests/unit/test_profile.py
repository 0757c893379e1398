"""The image's switches, and the profile: what it sets for PyTorch, and what it leaves alone."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from _torch_images import defaults, switches

BACKENDS = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"
# What the profile sets without CUTLASS, which this machine does not have at /opt/cutlass.
ALWAYS = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
WORDS = {True: ("1", "on", "TRUE", " Yes "), False: ("0", "OFF", "Off", "false", "no")}


@pytest.fixture(autouse=True)
def _sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "cannot_share", lambda: "")


def profile(environ: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    changes, _, lines = defaults.profile({"PATH": "/nowhere", **environ})
    return changes, lines


@pytest.mark.parametrize("name", switches.DEFAULTS)
@pytest.mark.parametrize(("state", "word"), [(s, word) for s in WORDS for word in WORDS[s]])
def test_every_switch_reads_the_same_words(name: str, *, state: bool, word: str) -> None:
    """TORCH_IMAGE_PROFILE=OFF left TF32 on, TORCH_IMAGE_TF32=true turned it off, QUIET=0 was quiet."""
    assert switches.is_on({name: word}, name) is state
    assert switches.settled({name: word}) == ({name: str(int(state))}, [])
    if name == switches.PROFILE:
        assert profile({name: word}) == (ALWAYS if state else {}, [])
        assert switches.is_on({name: word}, switches.TF32) is state
        assert switches.is_on({name: word, switches.TF32: "1"}, switches.TF32)


@pytest.mark.parametrize(("name", "state"), switches.DEFAULTS.items())
def test_profile_warns_once_of_an_invalid_switch(name: str, *, state: bool) -> None:
    message = f"{name}=2 is neither on nor off, so it is {'on' if state else 'off'}"
    changes, own, lines = defaults.profile({name: "2", "TORCH_IMAGE_GEMM": "2"})
    assert lines[0] == message
    assert (switches.is_on({name: "2"}, name), own[name]) == (state, str(int(state)))
    assert changes == ALWAYS
    assert defaults.profile({name: "2", "TORCH_IMAGE_GEMM": "2"} | own)[2] == []
    assert (switches.is_on({name: ""}, name), switches.settled({name: ""})) == (state, ({}, []))


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """The environment of an image with CUTLASS and nvcc."""
    (tmp_path / "cutlass/include/cutlass").mkdir(parents=True)
    (tmp_path / "cuda/bin").mkdir(parents=True)
    (tmp_path / "cuda/bin/nvcc").write_text("#!/bin/sh\n")
    (tmp_path / "cuda/bin/nvcc").chmod(0o755)
    return {
        "TORCHINDUCTOR_CUTLASS_DIR": str(tmp_path / "cutlass"),
        "CUDA_HOME": str(tmp_path / "cuda"),
    }


def test_cutlass_competes_with_what_is_tried_by_default(
    tools: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {**tools, "TORCH_IMAGE_GEMM": "CUTLASS"}
    competing = {**ALWAYS, BACKENDS: "ATEN,TRITON,CPP,CUTLASS"}
    assert profile(environ) == (competing, [])
    # In an image that has it, its place need not be named.
    place = environ.pop("TORCHINDUCTOR_CUTLASS_DIR")
    monkeypatch.setattr(defaults, "CUTLASS", place)
    assert profile(environ) == ({**competing, "TORCHINDUCTOR_CUTLASS_DIR": place}, [])


@pytest.mark.parametrize(
    ("value", "lacks", "message"),
    [
        ("triton", "", "is neither cutlass nor stock; ignored"),
        ("on", "", "is neither cutlass nor stock; ignored"),
        ("cutlass", "TORCHINDUCTOR_CUTLASS_DIR", "has no effect: no CUTLASS at /opt/cutlass; variant pod of CUDA 13 has it"),
        ("cutlass", "CUDA_HOME", "has no effect: no nvcc here; variant pod of CUDA 13 has it"),
    ],
)  # fmt: skip
def test_profile_warns_of_an_impossible_gemm(
    value: str, lacks: str, message: str, tools: dict[str, str]
) -> None:
    tools.pop(lacks, None)
    result = profile({**tools, "TORCH_IMAGE_GEMM": value})
    assert result == (ALWAYS, [f"TORCH_IMAGE_GEMM={value} {message}"])


@pytest.mark.parametrize("own", ["mine", ""])
def test_profile_keeps_settings_of_the_user(own: str, tools: dict[str, str]) -> None:
    """Also what is set to nothing; the older name of the allocator's setting counts, too."""
    names = ("PYTORCH_CUDA_ALLOC_CONF", BACKENDS)
    environ = {**tools, **dict.fromkeys(names, own), "TORCH_IMAGE_GEMM": "cutlass"}
    assert profile(environ) == ({}, [])


@pytest.mark.parametrize(
    ("failed", "scope", "capabilities", "reason"),
    [
        (1, "0", 0, "Operation not permitted"),  # Docker's seccomp profile
        (0, "", 0, ""),  # a kernel without Yama
        (0, "1", 0, "Yama's ptrace_scope is 1"),
        (0, "1", defaults.SYS_PTRACE, ""),
        (0, "3", defaults.SYS_PTRACE, "Yama's ptrace_scope is 3"),
    ],
)
def test_cannot_share_reason(
    monkeypatch: pytest.MonkeyPatch, failed: int, scope: str, capabilities: int, reason: str
) -> None:
    """Without a child: a fork of a process with threads is a warning of Python's."""
    monkeypatch.undo()
    monkeypatch.setattr(
        ctypes, "CDLL", lambda *_, **__: SimpleNamespace(syscall=lambda *_: -failed)
    )
    monkeypatch.setattr(ctypes, "get_errno", lambda: failed)
    monkeypatch.setattr(os, "close", lambda _: None)
    files = {"/proc/self/status": f"CapEff:\t{capabilities:016x}\nCapBnd:\t0\n"}
    monkeypatch.setattr(defaults, "_text", lambda path: files.get(path, scope))
    assert defaults.cannot_share() == (f"pidfd_getfd: {reason}" if reason else "")
