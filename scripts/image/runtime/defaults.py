"""The profile: settings for PyTorch that a start makes. docs/runtime.md says what was measured.

A variable that is set already (docker run -e NAME=VALUE), also to nothing, stays as it is.
TORCH_IMAGE_PROFILE=off turns all of them off.
"""

import ctypes
import os
import time
from collections.abc import Mapping

import facts
from account import shown

CUTLASS = "/opt/cutlass"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the newer name, and the older one
PIDFD_GETFD = 438  # its number on x86-64 and on arm64
SECONDS = 0.1


def profile(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The variables that the profile sets in an environment, and what it has to say."""
    if environ.get("TORCH_IMAGE_PROFILE") == "off":
        return {}, []
    # TF32 for float32 products is several times faster on Ampere and newer, and has 10 bits of
    # mantissa instead of 23. PyTorch's default is off. NVIDIA's own PyTorch images set it, too.
    # after_torch.py reads it.
    found = {"TORCH_IMAGE_TF32": "1"}
    # The allocator maps memory into growing segments, so that tensors of changing sizes fragment
    # less. PyTorch's default is off. Memory pools that manage their own memory (vLLM's sleep mode)
    # do not work with it: set PYTORCH_ALLOC_CONF to nothing for them.
    if not any(name in environ for name in ALLOCATOR) and not cannot_share():
        found["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    # Where Inductor's CUTLASS backend finds CUTLASS, in images that have it. PyTorch's default is
    # the third_party folder of a source tree, which no installed torch has.
    if os.path.isdir(f"{CUTLASS}/include"):
        found["TORCHINDUCTOR_CUTLASS_DIR"] = CUTLASS
    backends, complaint = _gemm({**found, **environ})
    # CUDA_MODULE_LOADING is not set: LAZY is the default since CUDA 12.2.
    changes = {name: v for name, v in {**found, **backends}.items() if name not in environ}
    return changes, [complaint] if complaint else []


def cannot_share() -> str:
    """Why processes here cannot share CUDA tensors of expandable segments; "" if they can.

    One of them takes file descriptors from the other by pidfd_getfd, which Docker's seccomp profile
    denies, and Yama for a process that is no child. So a child takes one from this process.
    """
    try:
        process = os.pidfd_open(os.getpid())
    except OSError as error:
        return f"pidfd_open: {error.strerror}"

    def take() -> dict[str, object]:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.syscall(PIDFD_GETFD, process, process, 0) < 0
        return {"problem": os.strerror(ctypes.get_errno()) if failed else ""}

    try:
        answer = facts.in_child(take, time.monotonic() + SECONDS) or {"problem": "no answer"}
    except OSError as error:
        answer = {"problem": error.strerror}
    finally:
        os.close(process)
    return f"pidfd_getfd: {answer['problem']}" if answer["problem"] else ""


def _gemm(environ: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """What TORCH_IMAGE_GEMM sets, and a complaint about it, else "".

    "cutlass" lets CUTLASS compete with what max-autotune tries for matrix products by default. It
    compiles for minutes, so it is off unless asked for. TORCHINDUCTOR_MAX_AUTOTUNE is not set: it
    would turn max-autotune on for every torch.compile, and that is the program's choice.
    """
    asked = environ.get("TORCH_IMAGE_GEMM", "")
    folder = environ.get("TORCHINDUCTOR_CUTLASS_DIR", "")
    if asked in ("", "stock"):
        return {}, ""
    if asked != "cutlass":
        return {}, f"TORCH_IMAGE_GEMM={shown(asked)} is neither cutlass nor stock; ignored"
    if not os.path.isdir(f"{folder}/include/cutlass"):
        lack = f"no CUTLASS at {shown(folder or CUTLASS)}"
    elif not any(
        os.access(f"{place}/nvcc", os.X_OK)
        for place in (f"{environ.get('CUDA_HOME', '')}/bin", *environ.get("PATH", "").split(":"))
    ):
        lack = "no nvcc here"
    else:
        return {"TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": "ATEN,TRITON,CPP,CUTLASS"}, ""
    return {}, f"TORCH_IMAGE_GEMM=cutlass has no effect: {lack}; variant pod has it"
