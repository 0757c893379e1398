"""Locks of wheels: each wheel that a build may use, with its version, file name, size and hash.

The lock is also a requirements file for `uv pip install --require-hashes`. The comment above each
requirement has the wheel's size and file name, and the URL of its index if that is not the main
one (config/indexes.py).
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from torch_images.config.indexes import Index, is_index, origin
from torch_images.errors import shown
from torch_images.locks import grammar
from torch_images.platforms import AMD64, Platform

# The name in messages of the index of UV_DEFAULT_INDEX, whose URL may have a password.
MAIN = "the main index"

# The oldest glibc of the bases, bookworm's.
GLIBC = (2, 36)

_WHEEL = re.compile(
    r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[^\s=]+) "
    r"--hash=sha256:(?P<sha256>[0-9a-f]{64})"
)
_PYTHON = re.compile(r"3\.[0-9]{1,2}")
# A plain file name that no program reads as an option.
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!~-]{0,250}\.whl")


# Packages whose version is the CUDA version of a release of torch.
_RUNTIMES = ("cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")


@dataclass(frozen=True, kw_only=True, order=True)
class LockedWheel:
    """One wheel.

    `name`: the project's name, normalised as in PEP 503, such as "nvidia-nccl-cu12".
    `version`: by PEP 440, such as "2.27.5" or "2.10.0+cu128".
    `filename`: without a folder, such as "triton-3.6.0-cp311-cp311-linux_x86_64.whl".
    `size`: bytes of that file; 0 if unknown.
    `sha256`: of that file, 64 hexadecimal digits.
    `index`: the URL of its index; "" for the main one.
    """

    name: str
    version: str
    filename: str
    size: int
    sha256: str
    index: str = ""

    @property
    def of_cuda(self) -> bool:
        """Whether it is one of NVIDIA's packages, by its name."""
        return self.name.startswith(("nvidia-", "cuda-"))

    @property
    def line(self) -> str:
        """The requirement, as `uv pip install --require-hashes` reads it."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True, kw_only=True)
class WheelLock:
    """The content of a lock file of wheels.

    `name`: the file's name without suffix, such as "wheel-cu130-py311".
    `date`: the day on which it was resolved (UTC).
    `python`: the version of Python that the wheels are for, such as "3.11".
    `request`: the requested requirements, sorted, such as "torch==2.11.0".
    `wheels`: the requested wheels and all their requirements, sorted by name.
    `platform`: the platform of the wheels.
    """

    name: str
    date: dt.date
    python: str
    request: tuple[str, ...]
    wheels: tuple[LockedWheel, ...]
    platform: Platform = AMD64

    @property
    def digest(self) -> str:
        """SHA-256 of the lock's text, in hexadecimal."""
        return hashlib.sha256(format_wheels(self).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all wheels together, as downloaded."""
        return sum(wheel.size for wheel in self.wheels)

    def versions(self) -> dict[str, str]:
        """Version by normalised name."""
        return {wheel.name: wheel.version for wheel in self.wheels}

    @property
    def cuda(self) -> str:
        """The CUDA version that its torch requires, such as "13.0"; "" if there is none."""
        versions = self.versions()
        text = next((versions[name] for name in _RUNTIMES if name in versions), "")
        return ".".join(text.split(".")[:2])


def format_wheels(lock: WheelLock) -> str:
    """The text of the lock file, sorted, so that equal locks have equal texts."""
    header = {
        "date": lock.date.isoformat(),
        "platform": grammar.platform_word(lock.platform),
        "python": lock.python,
        "request": " ".join(sorted(lock.request)),
    }
    return grammar.compose(
        header, (grammar.Entry(w.size, w.filename, w.line, w.index) for w in sorted(lock.wheels))
    )


def requirements_text(wheels: Iterable[LockedWheel]) -> str:
    """Requirements for `uv pip install --require-hashes` with wheels of any index.

    uv reads a project's page in another index as a page of links. It takes the file with the hash
    from there, and asks the main index for everything else.
    """
    wheels = tuple(wheels)
    pages = sorted({f"{wheel.index}/{wheel.name}/" for wheel in wheels if wheel.index})
    lines = [*(f"--find-links {page}" for page in pages), *(wheel.line for wheel in wheels)]
    return "".join(f"{line}\n" for line in lines)


# Many images share a lock: this saves a tenth of the time of the verb `matrix`.
@functools.lru_cache(maxsize=64)
def parse_wheels(text: str, name: str) -> WheelLock:
    """Parse the text of a lock; `name` is the file's, without suffix.

    Raises LockError, with file and line, for anything that `format_wheels` does not write. Does not
    check the index of each wheel: `check_origins` does.
    """
    keys = ("date", "platform", "python", "request")
    header, entries = grammar.parse(text, name, keys, origins=True)
    python, platform = header.get("python", ""), grammar.platform(header, name)
    if not _PYTHON.fullmatch(python):
        raise grammar.damaged(name, "the header lacks the version of Python")
    wheels = []
    for entry in entries:
        match = _WHEEL.fullmatch(entry.line)
        if not match or not grammar.is_version(match["version"]):
            raise grammar.unreadable(name, entry.line)
        if problem := _unfit(entry.where, match["name"], match["version"], python, platform):
            raise grammar.damaged(name, problem)
        if entry.origin and not is_index(entry.origin):
            problem = f"{match['name']} is from {shown(entry.origin)}, which is not an index"
            raise grammar.damaged(name, problem)
        wheels.append(
            LockedWheel(
                name=match["name"],
                version=match["version"],
                filename=entry.where,
                size=entry.size,
                sha256=match["sha256"],
                index=entry.origin,
            )
        )
    grammar.check_once((wheel.name for wheel in wheels), name)
    return WheelLock(
        name=name,
        date=dt.date.fromisoformat(header["date"]),
        python=python,
        request=tuple(sorted(header.get("request", "").split())),
        wheels=tuple(sorted(wheels)),
        platform=platform,
    )


def read_wheels(path: Path, index: Index | None = None) -> WheelLock:
    """The lock in a file; `index` is the index of its release of torch, None for the main one.

    Raises LockError if the file is missing or damaged, and as `check_origins` does.
    """
    lock = parse_wheels(grammar.read(path), path.stem)
    check_origins(lock, index)
    return lock


def check_origins(lock: WheelLock, index: Index | None) -> None:
    """Raise LockError unless each wheel is from the index that images.yaml has for its name."""
    for wheel in lock.wheels:
        expected = origin(wheel.name, index)
        if wheel.index != expected:
            raise grammar.damaged(
                lock.name,
                f"{wheel.name} is from {shown(wheel.index) or MAIN}, but images.yaml has "
                f"{expected or MAIN}",
            )


def uv_platform(platform: Platform) -> str:
    """A platform with the oldest glibc of the bases, in uv's form: "x86_64-manylinux_2_36"."""
    return f"{platform.machine}-manylinux_{GLIBC[0]}_{GLIBC[1]}"


@functools.cache
def _rank(python: str, platform: Platform) -> Mapping[Tag, int]:
    """The rank of each tag that installs on every base, for a Python; from 0, the best is last."""
    version, machine = tuple(int(part) for part in python.split(".")), platform.machine
    glibcs = [f"manylinux_{GLIBC[0]}_{minor}_{machine}" for minor in range(GLIBC[1], 4, -1)]
    legacy = {17: f"manylinux2014_{machine}"}  # PEP 599; earlier ones are only for x86-64
    if platform == AMD64:
        legacy |= {12: "manylinux2010_x86_64", 5: "manylinux1_x86_64"}
    platforms = []
    for minor, name in zip(range(GLIBC[1], 4, -1), glibcs, strict=True):
        platforms += [name, legacy[minor]] if minor in legacy else [name]
    platforms.append(f"linux_{machine}")
    interpreter = f"cp{version[0]}{version[1]}"
    tags = (
        *cpython_tags(version, platforms=platforms),
        *compatible_tags(version, interpreter=interpreter, platforms=platforms),
    )
    return {tag: rank for rank, tag in enumerate(reversed(tags))}


def best_wheel(filenames: tuple[str, ...], python: str, platform: Platform = AMD64) -> str | None:
    """The file that an installer picks: best tag, then highest build number; None if none fits."""
    rank = _rank(python, platform)
    fitting = []
    for filename in filenames:
        try:
            _, _, build, tags = parse_wheel_filename(filename)
        except ValueError:  # also for numbers of thousands of digits
            continue
        places = [rank[tag] for tag in tags if tag in rank]
        if places:
            fitting.append((max(places), build, filename))
    return max(fitting)[2] if fitting else None


@functools.lru_cache(maxsize=4096)  # locks share most of their wheels
def _unfit(filename: str, name: str, version: str, python: str, platform: Platform) -> str:
    """Why a file name does not fit this wheel and Python; "" if it fits."""
    if not _FILENAME.fullmatch(filename):
        return f"{name} has a file name that is not a wheel's"
    try:
        project, release, _, _ = parse_wheel_filename(filename)
    except ValueError:
        return f"{filename} is not the name of a wheel"
    if (project, release) != (name, Version(version)):
        return f"{filename} is not a wheel of {name} {version}"
    if best_wheel((filename,), python, platform) is None:
        return f"{filename} is not a wheel for Python {python} on {platform}"
    return ""
