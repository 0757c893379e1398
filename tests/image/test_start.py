"""The entrypoint: PyTorch uses the settings that it makes, and it says which libcuda it chose."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
from packaging.version import Version
from testinfra.backend.base import CommandResult
from testinfra.host import Host

# What torch takes from the start's variables, also without a GPU; and what Inductor does.
PRINT_SETTINGS = """
import json, torch
from torch._inductor import config
matmul = torch.backends.cuda.matmul
print(json.dumps({
    "precision": torch.get_float32_matmul_precision(),
    "allowed": matmul.allow_tf32,
    "matmul": getattr(matmul, "fp32_precision", None),
    "convolutions": torch.backends.cudnn.allow_tf32,
    "expandable": torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"],
    "gemm": sorted(config.max_autotune_gemm_backends.upper().replace(" ", "").split(",")),
    "max_autotune": [config.max_autotune, config.max_autotune_gemm],
}))
"""

Started = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def started(host: Host) -> Started:
    """Start Python with these settings; once for the same ones, as importing torch takes time."""

    @functools.cache
    def start(**settings: str) -> CommandResult:
        words = " ".join(f"{name}={value}" for name, value in settings.items())
        return host.run(f"{words} torch-entrypoint python -c %s", PRINT_SETTINGS)

    return start


@pytest.mark.parametrize("profile", ["on", "off"])
def test_profile_is_in_force(started: Started, expected: dict[str, Any], profile: str) -> None:
    """At import, torch reads the variables that the profile sets. On is the default."""
    done = started(**({"TORCH_IMAGE_PROFILE": "off"} if profile == "off" else {}))
    assert done.rc == 0, done.stderr
    found, on = json.loads(done.stdout), profile == "on"
    assert found["precision"] == ("high" if on else "highest")
    assert found["allowed"] is on
    if found["matmul"] is not None:  # torch has this word for it from 2.9 on
        assert (found["matmul"] == "tf32") is on
    assert found["convolutions"]  # torch's own default
    # Before 2.9, torch reads an older name of the allocator's setting.
    knows = Version(expected["torch"]) >= Version("2.9.0a0")
    assert found["expandable"] is (on and knows)


@pytest.mark.parametrize("asked", ["", "cutlass"])
def test_cutlass_competes_where_the_image_has_it(
    started: Started, expected: dict[str, Any], asked: str
) -> None:
    """TORCH_IMAGE_GEMM says what torch.compile may choose from for matrix products.

    An image without CUTLASS or nvcc says that it cannot. max-autotune stays off either way.
    """
    able = "nvidia-cutlass" in expected["unpacked"] and bool(expected["cuda_home"])
    done = started(**({"TORCH_IMAGE_GEMM": asked} if asked else {}))
    assert done.rc == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"ATEN", "TRITON", "CPP"} <= set(found["gemm"])
    assert ("CUTLASS" in found["gemm"]) == (able and asked == "cutlass")
    assert found["max_autotune"] == [False, False]
    assert ("TORCH_IMAGE_GEMM=cutlass has no effect" in done.stderr) == (asked != "" and not able)


def test_start_says_what_it_chose(host: Host) -> None:
    done = host.run("torch-entrypoint true")
    assert done.rc == 0
    assert done.stdout == ""
    assert done.stderr.startswith("torch-images: CUDA ")
    assert done.stderr.count("\n") == 1


def test_doctor_agrees_with_the_start(host: Host) -> None:
    line = host.run("torch-entrypoint true").stderr.removeprefix("torch-images: ").strip()
    assert json.loads(host.run("cuda-doctor --json").stdout)["summary"] == line
