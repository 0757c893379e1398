"""Locks of wheels: each wheel that a build may use, with its version, file name, size and hash.

Such a lock is also a requirements file, which `uv pip install --require-hashes` reads unchanged.
The comment above each requirement has the wheel's size and file name, and the URL of its index if
that is not the main one (config/indexes.py).
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from torch_images.config.indexes import Index, is_index, origin
from torch_images.errors import CommandError, LockError, NetworkError, shown
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.locks import grammar
from torch_images.platforms import AMD64, Platform

# How messages call the index that UV_DEFAULT_INDEX names, whose URL may have a password.
MAIN = "the main index"

# The oldest glibc of the bases, bookworm's.
GLIBC = (2, 36)

_WHEEL = re.compile(
    r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[^\s=]+) "
    r"--hash=sha256:(?P<sha256>[0-9a-f]{64})"
)
_PYTHON = re.compile(r"3\.[0-9]{1,2}")
# A name within a folder and nothing else, that no program takes for an option.
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!~-]{0,250}\.whl")


# Whose version is that of the CUDA which a release of torch is for.
_RUNTIMES = ("cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")


@dataclass(frozen=True, kw_only=True, order=True)
class LockedWheel:
    """One wheel.

    `name`: the project's name, normalised as in PEP 503, such as "nvidia-nccl-cu12".
    `version`: as PEP 440 has it, such as "2.27.5" or "2.10.0+cu128".
    `filename`: without a folder, such as "triton-3.6.0-cp311-cp311-linux_x86_64.whl".
    `size`: bytes of that file; 0 if unknown.
    `sha256`: of that file, 64 hexadecimal digits.
    `index`: the URL of the index that has it; "" for the main one.
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
class OtherIndex:
    """An index beside the main one, as uv is told of it.

    `settings`: variables of uv's, and what they are set to: see fetch/resolve.py.
    """

    index: Index
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class WheelLock:
    """The content of a lock file of wheels.

    `name`: the file's name without suffix, such as "wheel-cu130-py311".
    `date`: the day on which it was resolved (UTC).
    `python`: the version of Python that the wheels are for, such as "3.11".
    `request`: the requirements that were asked for, sorted, such as "torch==2.11.0".
    `wheels`: what was asked for and all that it requires, sorted by name.
    `platform`: what the wheels are for.
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
        """The CUDA version of its torch by what that requires, such as "13.0"; "" for none."""
        versions = self.versions()
        text = next((versions[name] for name in _RUNTIMES if name in versions), "")
        return ".".join(text.split(".")[:2])


def format_wheels(lock: WheelLock) -> str:
    """The text of the lock file. It is sorted, so that equal locks have equal texts."""
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
    """What `uv pip install --require-hashes` reads to install wheels of any index.

    The page of a project of another index is a page of links. uv takes from it what has the hash,
    and asks the main index for all else.
    """
    wheels = tuple(wheels)
    pages = sorted({f"{wheel.index}/{wheel.name}/" for wheel in wheels if wheel.index})
    lines = [*(f"--find-links {page}" for page in pages), *(wheel.line for wheel in wheels)]
    return "".join(f"{line}\n" for line in lines)


# Many images share a lock: of the verb `matrix` this saves a tenth.
@functools.lru_cache(maxsize=64)
def parse_wheels(text: str, name: str) -> WheelLock:
    """The lock that a text holds; `name` is the file's, without suffix.

    Raises LockError, with file and line, for anything that `format_wheels` does not write. Which
    index a wheel may come from is not checked here, but by `check_origins`.
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
            problem = f"{match['name']} comes from {shown(entry.origin)}, which is not an index"
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
    """The lock in a file; `index` is that of its release of torch, None for the main one.

    Raises LockError if the file is missing or damaged, and as `check_origins` does.
    """
    lock = parse_wheels(grammar.read(path), path.stem)
    check_origins(lock, index)
    return lock


def check_origins(lock: WheelLock, index: Index | None) -> None:
    """Raise LockError unless each wheel comes from the index that images.yaml says for its name."""
    for wheel in lock.wheels:
        expected = origin(wheel.name, index)
        if wheel.index != expected:
            raise grammar.damaged(
                lock.name,
                f"{wheel.name} comes from {shown(wheel.index) or MAIN}, images.yaml says "
                f"{expected or MAIN}",
            )


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What a lock of wheels is resolved from.

    `name` and `date` are those of the lock. The wheels are for `platform` with the glibc of GLIBC
    or newer, and for `python`, such as "3.11". `constraints`, such as "numpy==2.3.5", fix the
    version of a package if it is needed. Versions also go with the requirements `beside`, which are
    not part of the lock. `before` has days (UTC) by name of a package; files that the index got
    then or later are left out. With `alone`, what the wheels themselves require is left out.
    """

    name: str
    words: tuple[str, ...]
    python: str
    platform: Platform = AMD64
    date: dt.date
    constraints: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    before: Mapping[str, dt.date] | None = None
    alone: bool = False


def resolve(
    wanted: Requirements, *, network: Network, run: Runner, other: OtherIndex | None = None
) -> WheelLock:
    """Resolve requirements, and what they require, to one wheel each. uv decides which.

    `other` is the index of the release of torch, None for the main one. Raises NetworkError if an
    index cannot be reached, and LockError if there is no solution or an index gives no SHA-256.
    """
    import uv

    python, platform, constraints = wanted.python, wanted.platform, wanted.constraints
    if wanted.beside:
        both = (*wanted.words, *wanted.beside)
        wider = replace(wanted, words=both, beside=(), alone=False)
        versions = resolve(wider, network=network, run=run, other=other).versions()
        constraints = (*constraints, *(f"{n}=={version}" for n, version in versions.items()))
    with tempfile.TemporaryDirectory() as folder:
        target, limits = Path(folder, "pylock.toml"), Path(folder, "constraints.txt")
        limits.write_text("\n".join(constraints))
        command = [uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
        command += ["--format", "pylock.toml", "--python-platform", uv_platform(platform)]
        # This Python, for builds that there are none of: else uv downloads one from GitHub.
        command += ["--python", sys.executable, "--python-version", python]
        command += ["--only-binary", ":all:", "-o", str(target), "-"]
        command += [f"--constraints={limits}"] if constraints else []
        for package, day in (wanted.before or {}).items():
            command += ["--exclude-newer-package", f"{package}={day.isoformat()}T00:00:00Z"]
        command += ["--no-deps"] if wanted.alone else []
        try:
            env = network.for_uv() | dict(other.settings if other else ())
            run.run(command, env=env, stdin="\n".join(wanted.words))
        except CommandError as error:
            raise _resolve_error(error.output) from None
        document = tomllib.loads(target.read_text(encoding="utf-8"))
    packages = document.get("packages", [])
    chosen = [_pick(package, python, platform) for package in packages]
    with ThreadPoolExecutor(8) as pool:
        sizes = pool.map(lambda wheel: wheel.get("size") or _size(wheel["url"], network), chosen)
    wheels = [
        LockedWheel(
            name=canonicalize_name(package["name"]),
            version=str(package.get("version", "")),
            filename=_filename(wheel["url"]),
            size=size,
            sha256=wheel["hashes"]["sha256"],
            index=origin(canonicalize_name(package["name"]), other.index if other else None),
        )
        for package, wheel, size in zip(packages, chosen, sizes, strict=True)
    ]
    return WheelLock(
        name=wanted.name,
        date=wanted.date,
        python=python,
        request=tuple(sorted(wanted.words)),
        wheels=tuple(sorted(wheels)),
        platform=platform,
    )


def uv_platform(platform: Platform) -> str:
    """A platform with the oldest glibc of the bases, as uv has it: "x86_64-manylinux_2_36"."""
    return f"{platform.machine}-manylinux_{GLIBC[0]}_{GLIBC[1]}"


@functools.cache
def wheel_tags(python: str, platform: Platform = AMD64) -> tuple[Tag, ...]:
    """The tags of wheels that install on every base with a Python such as "3.11", best first."""
    version, machine = tuple(int(part) for part in python.split(".")), platform.machine
    glibcs = [f"manylinux_{GLIBC[0]}_{minor}_{machine}" for minor in range(GLIBC[1], 4, -1)]
    legacy = {17: f"manylinux2014_{machine}"}  # PEP 599; those before it knew x86-64 alone
    if platform == AMD64:
        legacy |= {12: "manylinux2010_x86_64", 5: "manylinux1_x86_64"}
    platforms = []
    for minor, name in zip(range(GLIBC[1], 4, -1), glibcs, strict=True):
        platforms += [name, legacy[minor]] if minor in legacy else [name]
    platforms.append(f"linux_{machine}")
    interpreter = f"cp{version[0]}{version[1]}"
    return (
        *cpython_tags(version, platforms=platforms),
        *compatible_tags(version, interpreter=interpreter, platforms=platforms),
    )


def best_wheel(filenames: tuple[str, ...], python: str, platform: Platform = AMD64) -> str | None:
    """The file that an installer takes: best tag, then highest build number; None if none fits."""
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


@functools.cache
def _rank(python: str, platform: Platform) -> Mapping[Tag, int]:
    """The rank of each tag that installs, from 0; the best one has the highest."""
    return {tag: rank for rank, tag in enumerate(reversed(wheel_tags(python, platform)))}


@functools.lru_cache(maxsize=4096)  # locks share most of their wheels
def _unfit(filename: str, name: str, version: str, python: str, platform: Platform) -> str:
    """Why a file name is not one of this wheel that installs on `python`; "" if it is."""
    if not _FILENAME.fullmatch(filename):
        return f"{name} has a file name that is not one of a wheel"
    try:
        project, release, _, _ = parse_wheel_filename(filename)
    except ValueError:
        return f"{filename} is not the name of a wheel"
    if (project, release) != (name, Version(version)):
        return f"{filename} is not a wheel of {name} {version}"
    if best_wheel((filename,), python, platform) is None:
        return f"{filename} is not a wheel for Python {python} on {platform}"
    return ""


def _filename(url: str) -> str:
    return unquote(urlsplit(url).path).rpartition("/")[2]


def _pick(package: dict[str, Any], python: str, platform: Platform) -> dict[str, Any]:
    """The wheel to install of one package of a pylock.toml (PEP 751).

    Raises LockError if no wheel fits, or if the index gave no SHA-256 for the one that does.
    """
    wheels = {
        _filename(wheel["url"]): wheel for wheel in package.get("wheels", []) if "url" in wheel
    }
    filename = best_wheel(tuple(wheels), python, platform)
    if filename is None:
        raise LockError(
            f"{package['name']} {package['version']} has no wheel for Python {python} on "
            f"{platform}",
            "choose another version in images.yaml, or exclude it there",
        )
    wheel: dict[str, Any] = wheels[filename]
    if "sha256" not in wheel.get("hashes", {}):
        raise LockError(
            f"the package index gives no SHA-256 for {filename}",
            "name an index that does in UV_DEFAULT_INDEX",
        )
    return wheel


def _size(url: str, network: Network) -> int:
    """Bytes of a file at a URL, asked of its server, since indexes need not state sizes (PEP 700).

    Raises NetworkError.
    """
    import requests

    try:
        answer = requests.head(
            url,
            allow_redirects=True,
            timeout=60,
            verify=network.verify,
            headers={"Accept-Encoding": "identity"},
        )
        answer.raise_for_status()
        return int(answer.headers["Content-Length"])
    except (requests.RequestException, KeyError, ValueError) as error:
        raise NetworkError(f"the size of {_filename(url)} could not be read: {error}") from None


def _resolve_error(output: str) -> Exception:
    text = " ".join(output.replace("\u2570\u2500\u25b6", "").split())
    if re.search(r"error sending request|Could not connect|Failed to fetch|dns error", text):
        return NetworkError(
            "the package index could not be reached",
            "check network and proxy, or name a mirror in UV_DEFAULT_INDEX",
        )
    return LockError(f"no set of wheels meets the requirements: {text[:400]}")
