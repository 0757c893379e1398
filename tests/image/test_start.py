"""The entrypoint: PyTorch uses the settings that it makes, and it says which libcuda it chose."""

from __future__ import annotations

import json
from typing import Any

import pytest
from packaging.version import Version
from testinfra.host import Host

# What torch takes from the start's variables, also without a GPU.
PRINT_SETTINGS = """
import json, torch
matmul = torch.backends.cuda.matmul
print(json.dumps({
    "precision": torch.get_float32_matmul_precision(),
    "allowed": matmul.allow_tf32,
    "matmul": getattr(matmul, "fp32_precision", None),
    "convolutions": torch.backends.cudnn.allow_tf32,
    "expandable": torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"],
}))
"""
# What torch.compile may choose from for matrix products, where that is not torch's own default.
PRINT_GEMM = """
import os
if "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS" in os.environ:
    from torch._inductor import config
    assert not config.max_autotune and not config.max_autotune_gemm
    print(config.max_autotune_gemm_backends.upper().replace(",", " "))
"""


@pytest.mark.parametrize("profile", ["on", "off"])
def test_profile_is_in_force(host: Host, expected: dict[str, Any], profile: str) -> None:
    """At import, torch reads the variables that the profile sets."""
    settings = f"TORCH_IMAGE_QUIET=1 TORCH_IMAGE_PROFILE={profile}"
    found = json.loads(
        host.check_output(f"{settings} torch-entrypoint python -c %s", PRINT_SETTINGS)
    )
    on = profile == "on"
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
    host: Host, expected: dict[str, Any], asked: str
) -> None:
    """TORCH_IMAGE_GEMM=cutlass adds CUTLASS to torch's default, and max-autotune stays off.

    An image without CUTLASS or nvcc says that it cannot.
    """
    able = "nvidia-cutlass" in expected["unpacked"] and bool(expected["cuda_home"])
    done = host.run(f"TORCH_IMAGE_GEMM={asked} torch-entrypoint python -c %s", PRINT_GEMM)
    assert done.rc == 0, done.stderr
    competing = {"ATEN", "TRITON", "CPP", "CUTLASS"} if able and asked else set()
    assert set(done.stdout.split()) == competing
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
