"""Try one libcuda in this process: initialise it, take a context, and copy some memory.

    probe.py FOLDER    ("" for the libcuda that the loader finds)

It prints a JSON list: the CUDA error, the step that failed, a detail, and the file of that libcuda.
cuInit alone is not enough: it can pass although the first context fails with error 999.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path

_BYTES = 4096


def trial(folder: str) -> tuple[int, str, str]:
    """The CUDA error, the step that failed, and a detail.

    The error is 0 if all steps pass, and -1 for a failure that CUDA did not report.
    """
    try:
        cuda = ctypes.CDLL(f"{folder}/libcuda.so.1" if folder else "libcuda.so.1")
    except OSError as error:
        return (-1, "load", str(error))
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    sent = ctypes.create_string_buffer(bytes(range(256)) * (_BYTES // 256), _BYTES)
    got = ctypes.create_string_buffer(_BYTES)
    steps: tuple[tuple[str, Callable[[], int]], ...] = (
        ("cuInit", lambda: cuda.cuInit(0)),
        ("cuDeviceGet", lambda: cuda.cuDeviceGet(ctypes.byref(device), 0)),
        (
            "cuDevicePrimaryCtxRetain",
            lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        ),
        ("cuCtxSetCurrent", lambda: cuda.cuCtxSetCurrent(context)),
        ("cuMemAlloc", lambda: cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(_BYTES))),
        ("cuMemcpyHtoD", lambda: cuda.cuMemcpyHtoD_v2(memory, sent, ctypes.c_size_t(_BYTES))),
        ("cuMemcpyDtoH", lambda: cuda.cuMemcpyDtoH_v2(got, memory, ctypes.c_size_t(_BYTES))),
    )
    for name, step in steps:
        try:
            code = step()
        except AttributeError as error:
            return (-1, name, str(error))
        if code:
            return (code, name, "")
    if got.raw != sent.raw:
        return (-1, "compare", "memory came back changed")
    return (0, "", "")


def loaded() -> str:
    """The path of the libcuda that this process has loaded; "" if there is none."""
    maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    paths = (line.split(maxsplit=5)[-1].strip() for line in maps)
    return next((path for path in paths if "/libcuda.so" in path), "")


if __name__ == "__main__":
    print(json.dumps([*trial(sys.argv[1]), loaded()]))
