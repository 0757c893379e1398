"""The profile: settings for torch, made by the Python of /opt/venv at the start of `import torch`.

docs/runtime.md says what was measured. A variable that is set already (docker run -e NAME=VALUE),
also to nothing, stays as it is. TORCH_IMAGE_PROFILE=off turns all of them off.
"""

import os
from collections.abc import Mapping

from _torch_images import switches
from _torch_images.account import shown

CUTLASS = "/opt/cutlass"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the newer name, and the older one
PIDFD_GETFD = 438  # its number on x86-64 and on arm64
SYS_PTRACE = 1 << 19  # the bit of this capability
GEMM = "TORCH_IMAGE_GEMM"


def profile(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Variables for torch, the image's own as they are understood, and what there is to say.

    Whoever says the lines sets the image's own variables, so that no later process repeats them.
    """
    own, lines = switches.settled(environ)
    if not switches.is_on(environ, switches.PROFILE):
        return {}, own, lines
    variables = {}
    # The allocator maps memory into growing segments, so that tensors of changing sizes fragment
    # less. PyTorch's default is off. Memory pools that manage their own memory (vLLM's sleep mode)
    # do not work with it: set PYTORCH_ALLOC_CONF to nothing for them.
    if not any(name in environ for name in ALLOCATOR) and not cannot_share():
        variables["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    # Where Inductor's CUTLASS backend finds CUTLASS, in images that have it. PyTorch's default is
    # the third_party folder of a source tree, which no installed torch has.
    if os.path.isdir(f"{CUTLASS}/include"):
        variables["TORCHINDUCTOR_CUTLASS_DIR"] = CUTLASS
    backends, complaint = _gemm({**variables, **environ})
    if complaint:
        own[GEMM] = "stock"
        lines.append(complaint)
    # CUDA_MODULE_LOADING is not set: LAZY is the default since CUDA 12.2.
    changes = {name: v for name, v in {**variables, **backends}.items() if name not in environ}
    return changes, own, lines


def cannot_share() -> str:
    """Why processes here cannot share CUDA tensors of expandable segments; "" if they can.

    One of them takes file descriptors from the other by pidfd_getfd, which Docker's seccomp profile
    denies, and Yama to a process that is no ancestor.
    """
    import ctypes

    try:
        process = os.pidfd_open(os.getpid())
    except OSError as error:
        return f"pidfd_open: {error.strerror}"
    libc = ctypes.CDLL(None, use_errno=True)
    taken = libc.syscall(PIDFD_GETFD, process, process, 0)  # seccomp denies it for itself, too
    problem = os.strerror(ctypes.get_errno()) if taken < 0 else _yama()
    for descriptor in (process, taken):
        if descriptor >= 0:
            os.close(descriptor)
    return f"pidfd_getfd: {problem}" if problem else ""


def _yama() -> str:
    """Why Yama denies it: https://docs.kernel.org/admin-guide/LSM/Yama.html."""
    scope = _text("/proc/sys/kernel/yama/ptrace_scope").strip() or "0"
    effective = _text("/proc/self/status").partition("CapEff:")[2].split()
    capable = bool(effective and int(effective[0], 16) & SYS_PTRACE)
    return "" if scope == "0" or (scope in "12" and capable) else f"Yama's ptrace_scope is {scope}"


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _gemm(environ: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """What TORCH_IMAGE_GEMM sets, and a complaint about it, else "".

    "cutlass" lets CUTLASS compete with what max-autotune tries for matrix products by default. It
    compiles for minutes, so it is off unless asked for. TORCHINDUCTOR_MAX_AUTOTUNE is not set: it
    would turn max-autotune on for every torch.compile, and that is the program's choice.
    """
    choice = environ.get(GEMM, "").lower()
    folder = environ.get("TORCHINDUCTOR_CUTLASS_DIR", "")
    if choice in ("", "stock"):
        return {}, ""
    if choice != "cutlass":
        return {}, f"{GEMM}={shown(environ[GEMM])} is neither cutlass nor stock; ignored"
    if not os.path.isdir(f"{folder}/include/cutlass"):
        lack = f"no CUTLASS at {shown(folder or CUTLASS)}"
    elif not any(
        os.access(f"{place}/nvcc", os.X_OK)
        for place in (f"{environ.get('CUDA_HOME', '')}/bin", *environ.get("PATH", "").split(":"))
    ):
        lack = "no nvcc here"
    else:
        return {"TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": "ATEN,TRITON,CPP,CUTLASS"}, ""
    return {}, f"{GEMM}=cutlass has no effect: {lack}; variant pod of CUDA 13 has it"
