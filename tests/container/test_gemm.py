"""TORCH_IMAGE_GEMM=cutlass: what torch.compile may choose from for matrix products, by the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

CODE = """
import json
from torch._inductor import config, utils
known = [utils._use_autotune_backend(name) for name in ("ATEN", "TRITON", "CPP", "CUTLASS")]
print(json.dumps([known, config.max_autotune, config.max_autotune_gemm]))
"""


@pytest.mark.parametrize("asked", ["", "cutlass"])
def test_cutlass_competes_where_the_image_has_it(asked: str, expected: dict[str, Any]) -> None:
    """An image without CUTLASS or nvcc says that it cannot. max-autotune stays off either way."""
    able = "nvidia-cutlass" in expected["unpacked"] and bool(expected["cuda_home"])
    mine = ("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS", "TORCH_IMAGE_QUIET", "TORCH_IMAGE_PROFILE")
    env = {k: v for k, v in os.environ.items() if k not in mine}
    done = subprocess.run(
        ["torch-entrypoint", sys.executable, "-c", CODE],
        env={**env, "TORCH_IMAGE_GEMM": asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with_cutlass = able and asked == "cutlass"
    assert json.loads(done.stdout) == [[True, True, True, with_cutlass], False, False]
    assert ("TORCH_IMAGE_GEMM=cutlass has no effect" in done.stderr) == (asked != "" and not able)
