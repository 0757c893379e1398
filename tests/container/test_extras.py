"""The packages that variants add to torch: each is installed, fits this torch, and loads."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

# The modules to import for a wheel. They include its compiled part, which the main module may
# fail to load without an error. "a|b" stands for the one that is there.
MODULES = {
    "causal-conv1d": ["causal_conv1d"],
    "cuda-python": ["cuda.bindings.driver", "cuda.bindings.nvrtc", "cuda.bindings.runtime"],
    "cupy-cuda12x": ["cupy"],
    "cupy-cuda13x": ["cupy"],
    "fbgemm-gpu": ["fbgemm_gpu"],
    "flash-attn": ["flash_attn"],
    "flash-attn-4": ["flash_attn.cute"],
    "jupyterlab": ["jupyterlab"],
    "mamba-ssm": ["mamba_ssm"],
    "nvidia-cutlass-dsl": ["cutlass", "cutlass.cute"],
    "torchao": ["torchao"],
    "torchaudio": ["torchaudio"],
    "torchrec": ["torchrec"],
    "torchvision": ["torchvision"],
    "vllm": ["vllm", "vllm._C|vllm._C_stable_libtorch"],
    "xformers": ["xformers.ops"],
}


def skip_without(expected: dict[str, Any], name: str) -> None:
    """Skip if the image does not claim to have the package `name`."""
    if name not in expected["packages"]:
        pytest.skip(f"the image does not claim to have {name}")


# The driver's libraries, each with a pattern for its functions in the output of nm.
DRIVER = {"libcuda.so.1": r" U (cu[A-Z]\w+)", "libnvidia-ml.so.1": r" U (nvml\w+)"}
LINKED = ("fbgemm_gpu", "vllm")  # packages whose libraries link those of the driver


@functools.cache
def environment(answers: str = "") -> dict[str, str]:
    """An environment in which packages that link the driver's libraries can be imported.

    Without a driver, stub libraries provide the functions that LINKED needs. Each call returns 999,
    but for those of `answers`, functions in C that the stub of NVML gets.
    """
    specs = [spec for name in LINKED if (spec := importlib.util.find_spec(name))]
    places = [Path(place) for spec in specs for place in spec.submodule_search_locations or ()]
    libraries = [path for place in places for path in place.glob("*.so")]
    listing = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", *libraries],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    folder = tempfile.mkdtemp()
    for library, function in DRIVER.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            names = sorted(set(re.findall(function, listing)))
            own = answers if "nvidia-ml" in library else ""
            stubs = (f"int {name}(void) {{ return 999; }}\n" for name in names if name not in own)
            code = own + "".join(stubs)
            command = ["gcc", "-shared", "-x", "c", "-", f"-Wl,-soname,{library}"]
            command += ["-o", f"{folder}/{library}"]
            subprocess.run(command, input=code, text=True, check=True)
    return {**os.environ, "LD_LIBRARY_PATH": folder}


@pytest.mark.parametrize("name", MODULES)
def test_imports(name: str, expected: dict[str, Any]) -> None:
    """Each import has its own process, because some change settings of torch or of warnings."""
    skip_without(expected, name)
    code = "; ".join(f"import {_there(module)}" for module in MODULES[name])
    env = environment() if name in ("fbgemm-gpu", "torchrec", "vllm") else None
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    # Some only print a message if their compiled part is for another torch.
    assert not re.search("(?i)can't load|incompatible|skipping import", done.stderr), done.stderr


def _there(names: str) -> str:
    """The first of the modules "a|b" whose file exists; the package itself is not imported."""
    for name in names.split("|"):
        package, *rest = name.split(".")
        spec = importlib.util.find_spec(package)
        folders = spec.submodule_search_locations if spec else None
        places = [Path(folder, *rest) for folder in folders or ()]
        if not rest or any([*place.parent.glob(f"{place.name}.*")] for place in places):
            return name
    return names.split("|", maxsplit=1)[0]


def test_torchvision_has_its_operators(expected: dict[str, Any]) -> None:
    skip_without(expected, "torchvision")
    import torch
    from torchvision.ops import nms

    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]])
    assert nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist() == [0, 2]


def test_torchaudio_resamples(expected: dict[str, Any]) -> None:
    skip_without(expected, "torchaudio")
    import torch
    from torchaudio.functional import resample

    assert resample(torch.ones(1, 16000), 16000, 8000).shape == (1, 8000)


def test_inductor_finds_cutlass(expected: dict[str, Any]) -> None:
    """A new process gets the entrypoint's environment, because torch reads it at import."""
    if "nvidia-cutlass" not in expected["unpacked"]:
        pytest.skip("the image does not claim to have CUTLASS")
    folder = expected["unpacked"]["nvidia-cutlass"]["folder"]
    assert Path(folder, "include/cute/tensor.hpp").is_file()
    places = ("torch._inductor.codegen.cutlass.utils", "torch._inductor.codegen.cuda.cutlass_utils")
    module = next(name for name in places if _found(name))
    code = f"from {module} import try_import_cutlass; raise SystemExit(not try_import_cutlass())"
    command = ["torch-entrypoint", sys.executable, "-c", code]
    env = {**os.environ, "TORCH_IMAGE_QUIET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]


def _found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_fbgemm_quantizes(expected: dict[str, Any]) -> None:
    skip_without(expected, "fbgemm-gpu")
    code = """
import fbgemm_gpu, torch
rows = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
packed = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(rows)
back = torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloat(packed)
raise SystemExit(not torch.allclose(back, rows, atol=0.02))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr[-2000:]
