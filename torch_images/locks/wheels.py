"""Locks of wheels: each wheel that a build may use, with its version, file name, size and hash.

A wheel has the URL of its index if that is not the main one (config/indexes.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from packaging.tags import Tag, compatible_tags, cpython_tags

from torch_images.config.fields import HostPlatform, WheelName
from torch_images.config.indexes import INDEX, Index, origin
from torch_images.config.schema import Section, matches
from torch_images.errors import shown
from torch_images.locks.files import Lock, PythonVersion, Sha256, Word, damaged, read
from torch_images.platforms import AMD64, Platform

# The name in messages of the index of UV_DEFAULT_INDEX, whose URL may have a password.
MAIN = "the main index"

# The oldest glibc of the bases, bookworm's.
GLIBC = (2, 36)


# Packages whose version is the CUDA version of a release of torch.
_RUNTIMES = ("cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")


@dataclass(frozen=True, kw_only=True, order=True)
class LockedWheel(Section):
    """One wheel.

    `name`: the project's name, normalised as in PEP 503, e.g. "nvidia-nccl-cu12".
    `version`: by PEP 440, e.g. "2.27.5" or "2.10.0+cu128".
    `filename`: without a folder, e.g. "triton-3.6.0-cp311-cp311-linux_x86_64.whl".
    `size`: bytes of that file; 0 if unknown.
    `sha256`: of that file, 64 hexadecimal digits.
    `index`: the URL of its index; "" for the main one.
    """

    name: WheelName
    version: PythonVersion
    # A plain file name that no program reads as an option.
    filename: Annotated[str, matches(r"[A-Za-z0-9][A-Za-z0-9._+!~-]{0,250}\.whl", "a wheel")]
    size: int
    sha256: Sha256
    index: Annotated[str, matches(rf"(?:{INDEX})?", "an index")] = ""

    @property
    def of_cuda(self) -> bool:
        """Whether it is one of NVIDIA's packages, by its name."""
        return self.name.startswith(("nvidia-", "cuda-"))

    @property
    def line(self) -> str:
        """The requirement, as `uv pip install --require-hashes` reads it."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True, kw_only=True)
class WheelLock(Lock):
    """The content of a lock file of wheels.

    `python`: the version of Python that the wheels are for, e.g. "3.11".
    `request`: the requested requirements, sorted, e.g. "torch==2.11.0".
    `wheels`: the requested wheels and all their requirements, sorted by name.
    `platform`: the platform of the wheels.
    """

    platform: HostPlatform = AMD64
    python: Annotated[str, matches(r"3\.[0-9]{1,2}", "a version of Python")]
    request: tuple[Word, ...]
    wheels: tuple[LockedWheel, ...]

    def versions(self) -> dict[str, str]:
        """Version by normalised name."""
        return {wheel.name: wheel.version for wheel in self.wheels}

    @property
    def cuda(self) -> str:
        """The CUDA version that its torch requires, e.g. "13.0"; "" if there is none."""
        versions = self.versions()
        text = next((versions[name] for name in _RUNTIMES if name in versions), "")
        return ".".join(text.split(".")[:2])


def requirements_text(wheels: Iterable[LockedWheel]) -> str:
    """Requirements for `uv pip install --require-hashes` with wheels of any index.

    uv reads a project's page in another index as a page of links. It takes the file with the hash
    from there, and asks the main index for everything else.
    """
    wheels = tuple(wheels)
    pages = sorted({f"{wheel.index}/{wheel.name}/" for wheel in wheels if wheel.index})
    lines = [*(f"--find-links {page}" for page in pages), *(wheel.line for wheel in wheels)]
    return "".join(f"{line}\n" for line in lines)


def read_wheels(path: Path, index: Index | None = None) -> WheelLock:
    """The lock in a file; `index` is the index of its release of torch, None for the main one.

    Raises LockError if the file is missing or damaged, or if a wheel is not from the index that
    images.yaml has for its name.
    """
    lock = read(WheelLock, path)
    for wheel in lock.wheels:
        expected = origin(wheel.name, index)
        if wheel.index != expected:
            raise damaged(
                lock.name,
                f"{wheel.name} is from {shown(wheel.index) or MAIN}, but images.yaml has "
                f"{expected or MAIN}",
            )
    return lock


def uv_platform(platform: Platform) -> str:
    """A platform with the oldest glibc of the bases, in uv's form: "x86_64-manylinux_2_36"."""
    return f"{platform.machine}-manylinux_{GLIBC[0]}_{GLIBC[1]}"


def tags(python: str, platform: Platform) -> tuple[Tag, ...]:
    """The tags of wheels that install on every base, for a Python; the best is first."""
    version, machine = tuple(int(part) for part in python.split(".")), platform.machine
    legacy = {17: "manylinux2014"}  # PEP 599; earlier ones are only for x86-64
    legacy |= {12: "manylinux2010", 5: "manylinux1"} if platform == AMD64 else {}
    platforms = []
    for minor in range(GLIBC[1], 4, -1):
        platforms.append(f"manylinux_{GLIBC[0]}_{minor}_{machine}")
        platforms += [f"{legacy[minor]}_{machine}"] if minor in legacy else []
    platforms.append(f"linux_{machine}")
    interpreter = f"cp{version[0]}{version[1]}"
    return (
        *cpython_tags(version, platforms=platforms),
        *compatible_tags(version, interpreter=interpreter, platforms=platforms),
    )
