"""Read what a container can see of its host: kernel driver, GPUs, libraries. It changes nothing.

It runs at every start, so it imports only fast modules of the standard library. Every path is
below `root`, which is "/" except in tests. A file or a name that cannot be read counts as absent:
os.path says so of any name, Path raises for one that is too long or that this user may not see.
"""

import ctypes
import json
import os
import re
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_images.inside.decision import Device, Host, Library
from torch_images.inside.elfnote import read_note

ENDS = 0.02  # seconds for a child that was killed
# Where NVIDIA's container toolkit mounts libraries in Debian and Ubuntu, and the loader looks.
SYSTEM = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")
_LIBRARIES = (
    *SYSTEM,
    "usr/lib64",  # where the toolkit mounts them elsewhere
    "usr/local/nvidia/lib64",  # Kubernetes on Google's machines
    "usr/lib/wsl/lib",
    ".singularity.d/libs",  # `apptainer --nv` binds them there, and puts it into LD_LIBRARY_PATH
)
# The proprietary and the open kernel module:
#   NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu ...
#   NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ...
_NVRM = re.compile(r"NVRM version:.*?\s(\d{3,}\.\d+(?:\.\d+)?)\s")
_VERSION = re.compile(r"\d{3,}\.\d+(?:\.\d+)?")


def kernel_driver(root: Path) -> str:
    """The version of NVIDIA's kernel driver; "" if there is none or it cannot be read."""
    match = _NVRM.search(_text(root / "proc/driver/nvidia/version") + "\n")
    if match:
        return match[1]
    version = _text(root / "sys/module/nvidia/version").strip()
    return version if _VERSION.fullmatch(version) else ""


def host_library(root: Path) -> str:
    """The path of the host's libcuda in this container; "" if it was not mounted."""
    for folder in _LIBRARIES:
        path = f"{root / folder}/libcuda.so.1"
        if os.path.exists(path):
            return path
    return ""


def has_nodes(root: Path) -> bool:
    """Whether this container has the device file of any GPU."""
    return any(re.match("nvidia[0-9]", name) for name in _names(root / "dev"))


def is_apptainer(root: Path) -> bool:
    """Whether Apptainer, or Singularity, runs this container: all their images have this folder."""
    return os.path.isdir(root / ".singularity.d")


def toolkit_library(root: Path) -> Library | None:
    """The compat library that NVIDIA's container toolkit has put first, None if it did not.

    Since 1.17.5 its hook does so with a file in the loader's configuration:
    https://github.com/NVIDIA/nvidia-container-toolkit
    """
    configuration = root / "etc/ld.so.conf.d"
    for name in _names(configuration):
        if not re.fullmatch(r"00-compat-.*\.conf", name):
            continue
        for line in _text(configuration / name).splitlines():
            if line.strip() and os.path.isdir(root / line.strip().lstrip("/")):
                return find_library(root / line.strip().lstrip("/"))
    return None


def find_library(folder: Path) -> Library | None:
    """The libcuda in a folder, with its version and note; None if there is none."""
    link = folder / "libcuda.so.1"
    if not os.path.isfile(link):
        return None
    path = Path(os.path.realpath(link))
    version = path.name.removeprefix("libcuda.so.")
    known = version if _VERSION.fullmatch(version) else ""
    return Library(str(folder), known, read_note(path))


def gather(root: Path, deadline: float, *, devices: bool = True) -> Host:
    """The facts about the host that are known by `deadline`, a time of `time.monotonic`.

    If `devices` is false, NVML is only asked if nothing else gives the driver's version.
    """
    driver, library = kernel_driver(root), host_library(root)
    wsl = os.path.exists(root / "dev/dxg")
    nodes = has_nodes(root)
    counted = None
    if (devices or not driver) and not wsl and (library or nodes):
        answer = in_child(lambda: _ask_nvml(library.rpartition("/")[0]), deadline)
        if answer:
            driver = driver or str(answer["driver"])
            counted = tuple(Device(*fields) for fields in answer["devices"])
    toolkit = None if wsl else toolkit_library(root)
    return Host(driver, library, nodes, counted, wsl, toolkit, is_apptainer(root))


def in_child(work: Callable[[], dict[str, object]], deadline: float) -> dict[str, Any] | None:
    """Call `work` in a child process, because calls of the driver can hang or crash.

    Returns its result; None if it fails or is not done by `deadline`, a time of `time.monotonic`. A
    child that is late is killed.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    text = b""
    with os.fdopen(reader, "rb", buffering=0) as stream:
        while select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
            chunk = stream.read(65536)
            if not chunk:
                os.waitpid(child, 0)
                return json.loads(text) if text else None
            text += chunk
    os.kill(child, signal.SIGKILL)
    # The entrypoint becomes the command, which would find an ended child that it never started. In
    # an uninterruptible call the child does not end, and is not waited for.
    until = time.monotonic() + ENDS
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < until:
        time.sleep(0.001)
    return None


def _ask_nvml(folder: str) -> dict[str, object]:
    """The driver's version, and name, brand and capability of every GPU, from the host's NVML.

    It is the loader's NVML, or else that in `folder`. Raises OSError if there is none.
    https://docs.nvidia.com/deploy/nvml-api/
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        nvml = ctypes.CDLL(f"{folder}/libnvidia-ml.so.1")
    if nvml.nvmlInit_v2():
        return {"driver": "", "devices": []}
    version = ctypes.create_string_buffer(80)
    nvml.nvmlSystemGetDriverVersion(version, 80)
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    devices = []
    for index in range(count.value):
        device, name, brand = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.c_uint()
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
        nvml.nvmlDeviceGetName(device, name, 96)
        if nvml.nvmlDeviceGetBrand(device, ctypes.byref(brand)):
            brand.value = 0
        devices.append(
            (name.value.decode(errors="replace"), brand.value, _capability(nvml, device))
        )
    return {"driver": version.value.decode(), "devices": devices}


def _capability(nvml: ctypes.CDLL, device: ctypes.c_void_p) -> str | None:
    """The compute capability of a GPU; None if this NVML cannot say it."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        failed = nvml.nvmlDeviceGetCudaComputeCapability(
            device, ctypes.byref(major), ctypes.byref(minor)
        )
    except AttributeError:  # an older NVML
        return None
    return None if failed else f"{major.value}.{minor.value}"


def _names(folder: Path) -> list[str]:
    """The names in a folder, in order; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: Path) -> str:
    """The text of a small file; "" if it cannot be read. A pipe would be waited for."""
    try:
        return path.read_text(errors="replace") if os.path.isfile(path) else ""
    except OSError:
        return ""
