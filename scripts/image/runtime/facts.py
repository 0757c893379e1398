"""What a container can see of its host: kernel driver, GPUs, libraries. Nothing is changed here.

Only the standard library, and nothing that takes long to import: this runs at every start. Every
path is below `root`, which is "/" but in tests.
"""

import ctypes
import json
import os
import re
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from decision import Device, Host, Library, Note

SECTION = ".note.cuda.fwd_compatibility"
_LIBRARIES = (
    "usr/lib/x86_64-linux-gnu",  # where NVIDIA's container toolkit mounts them, Debian and Ubuntu
    "usr/lib64",  # and elsewhere
    "usr/local/nvidia/lib64",  # Kubernetes on Google's machines
    "usr/lib/wsl/lib",
)
# The proprietary and the open kernel module:
#   NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu ...
#   NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ...
_NVRM = re.compile(r"NVRM version:.*?\s(\d{3,}\.\d+(?:\.\d+)?)\s")
_VERSION = re.compile(r"\d{3,}\.\d+(?:\.\d+)?")


def kernel_driver(root: Path) -> str:
    """The version of the NVIDIA kernel driver; "" where the kernel has none or does not tell."""
    found = _NVRM.search(_text(root / "proc/driver/nvidia/version") + "\n")
    if found:
        return found[1]
    version = _text(root / "sys/module/nvidia/version").strip()
    return version if _VERSION.fullmatch(version) else ""


def host_library(root: Path) -> str:
    """The host's libcuda as it was mounted into this container; "" where it was not."""
    for folder in _LIBRARIES:
        path = root / folder / "libcuda.so.1"
        if path.exists():
            return str(path)
    return ""


def has_nodes(root: Path) -> bool:
    """Whether this container has the device file of any GPU."""
    return any((root / "dev").glob("nvidia[0-9]*"))


def toolkit_library(root: Path) -> Library | None:
    """The compat library that NVIDIA's container toolkit has put first, if it did.

    Since 1.17.5 its hook does so with a file of the loader's configuration:
    https://github.com/NVIDIA/nvidia-container-toolkit
    """
    for conf in sorted((root / "etc/ld.so.conf.d").glob("00-compat-*.conf")):
        for line in _text(conf).splitlines():
            if line.strip() and (root / line.strip().lstrip("/")).is_dir():
                return find_library(root / line.strip().lstrip("/"))
    return None


def find_library(folder: Path) -> Library | None:
    """The libcuda in a folder, with its version and note; None where there is none."""
    link = folder / "libcuda.so.1"
    if not link.exists():
        return None
    path = link.resolve()
    version = path.name.removeprefix("libcuda.so.")
    known = version if _VERSION.fullmatch(version) else ""
    return Library(str(folder), known, read_note(path))


def read_note(path: Path) -> Note | None:
    """The branches and brands that a compat library is made for, from its ELF note.

    None where there is none, or none that can be understood.
    """
    try:
        for text in _notes(path):
            found = json.loads(text[text.index("{") : text.rindex("}") + 1])
            return Note(tuple(map(int, found["driver"])), tuple(map(int, found["device"])))
    except (OSError, struct.error, ValueError, KeyError, TypeError):
        pass
    return None


def gather(root: Path, deadline: float, *, devices: bool = True) -> Host:
    """All that is known of the host by a deadline (of `time.monotonic`).

    Without `devices`, NVML is not asked unless nothing else names the driver.
    """
    driver, library = kernel_driver(root), host_library(root)
    wsl = (root / "dev/dxg").exists()
    nodes = has_nodes(root)
    counted = None
    if (devices or not driver) and not wsl and (library or nodes):
        answer = in_child(_ask_nvml, deadline)
        if answer:
            driver = driver or str(answer["driver"])
            counted = tuple(Device(name, brand) for name, brand in answer["devices"])
    toolkit = None if wsl else toolkit_library(root)
    return Host(driver, library, nodes, counted, wsl, toolkit)


def in_child(work: Callable[[], dict[str, object]], deadline: float) -> dict[str, Any] | None:
    """What a function returns in a child process, or None: driver calls can hang or crash.

    A child that is not done by the deadline is killed, and left to PID 1: in an uninterruptible
    call it does not end at once.
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
    return None


def _ask_nvml() -> dict[str, object]:
    """Driver version, and name and brand of every GPU. NVML is the host's own, whatever libcuda is.

    https://docs.nvidia.com/deploy/nvml-api/
    """
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
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
        devices.append((name.value.decode(errors="replace"), brand.value))
    return {"driver": version.value.decode(), "devices": devices}


def _notes(path: Path) -> Iterator[str]:
    """The content of the compat note section of a 64-bit little-endian ELF file.

    Section headers: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.sheader.html
    """
    with path.open("rb") as file:
        header = file.read(64)
        if header[:6] != b"\x7fELF\x02\x01":
            return
        offset, size, count, names = struct.unpack_from("<40xQ10xHHH", header)
        file.seek(offset)
        table = file.read(size * count)
        entries = [struct.unpack_from("<IIQQQQ", table, size * i) for i in range(count)]
        file.seek(entries[names][4])
        strings = file.read(entries[names][5])
        for name, _, _, _, start, length in entries:
            if strings[name : strings.index(b"\0", name)].decode() == SECTION:
                file.seek(start)
                yield file.read(length).decode("latin-1")


def _text(path: Path) -> str:
    """The text of a small file, "" where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
