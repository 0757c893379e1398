"""A wheel of the real tree beside the published one of the same release.

Files, features, machine code, exported symbols (by nm of binutils) and sizes are compared. The
Python API is in the modules: torch's build writes stubs (.pyi) of all that it exports.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_images.fatbin import containers, section
from torch_images.inside.features import FEATURES, shows
from torch_images.markdown import table as markdown_table

LIBRARIES = (
    "libc10.so",
    "libc10_cuda.so",
    "libtorch_cpu.so",
    "libtorch_cuda.so",
    "libtorch_cuda_linalg.so",
    "libtorch_python.so",
)
# The published wheel of 2.6.0 for CUDA 12.4 has strings of libstdc++'s older ABI.
_STRINGS = (("std::__cxx11::", "std::"), ("[abi:cxx11]", ""))
_STRING = re.compile(r"std::basic_string<char, std::char_traits<char>, std::allocator<char> ?>")


@dataclass(frozen=True)
class Sides:
    """How two collections differ: how many are in both, and what only one has, sorted."""

    both: int
    ours: tuple[str, ...]
    theirs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library of a wheel: bytes, exported symbols, and code by target such as "sm_90"."""

    size: int
    symbols: frozenset[str]
    code: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """What a wheel holds: its bytes, the hash of each file, its features and libraries."""

    size: int
    installed: int
    files: Mapping[str, str]
    features: frozenset[str]
    libraries: Mapping[str, Library]


_NONE = Library(size=0, symbols=frozenset(), code={})


def sides(ours: Iterable[str], theirs: Iterable[str]) -> Sides:
    """Compare two collections of names."""
    mine, other = frozenset(ours), frozenset(theirs)
    return Sides(len(mine & other), tuple(sorted(mine - other)), tuple(sorted(other - mine)))


def hashes(wheel: Path) -> dict[str, str]:
    """The SHA-256 of each file in a wheel, by its path."""
    with zipfile.ZipFile(wheel) as zipped:
        members = (member for member in zipped.infolist() if not member.is_dir())
        return {m.filename: hashlib.sha256(zipped.read(m)).hexdigest() for m in members}


def read(wheel: Path, scratch: Path) -> Wheel:
    """Read a wheel of torch; its libraries are unpacked into `scratch`."""
    scratch.mkdir()
    with zipfile.ZipFile(wheel) as zipped:
        members = zipped.infolist()
        for member in members:
            if re.fullmatch(r"torch/lib/[^/]+\.so[.0-9]*", member.filename):
                (scratch / Path(member.filename).name).write_bytes(zipped.read(member))
    found = frozenset(name for name in FEATURES if shows(scratch, name))
    paths = [scratch / name for name in LIBRARIES if (scratch / name).exists()]
    return Wheel(
        size=wheel.stat().st_size,
        installed=sum(member.file_size for member in members),
        files=hashes(wheel),
        features=found,
        libraries={path.name: _library(path) for path in paths},
    )


def _library(path: Path) -> Library:
    code: Counter[str] = Counter()
    fatbin = section(memoryview(path.read_bytes()), ".nv_fatbin")
    for _, entries in containers(memoryview(fatbin)):
        for entry in entries:
            kind = "compute" if entry.ptx else "sm"
            code[f"{kind}_{entry.arch}{'a' if entry.specific else ''}"] += len(entry.data)
    return Library(size=path.stat().st_size, symbols=frozenset(_symbols(path)), code=dict(code))


def _symbols(path: Path) -> Iterator[str]:
    """What a library exports, as C++ has it, without the ABI of strings."""
    command = ["nm", "--dynamic", "--defined-only", "--demangle", "--format=posix", str(path)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        name = re.sub(r" [A-Za-z] [0-9a-f]+( [0-9a-f]+)?\s*$", "", line)
        for old, new in _STRINGS:
            name = name.replace(old, new)
        yield _STRING.sub("std::string", name)


def report(ours: Wheel, theirs: Wheel) -> dict[str, Any]:
    """What is equal and what differs; a pair of numbers is ours, then theirs."""
    files = {}
    for kind in ("modules", "headers", "libraries", "others"):
        pair = [{p: h for p, h in w.files.items() if _kind(p) == kind} for w in (ours, theirs)]
        differ = sorted(p for p, h in pair[0].items() if pair[1].get(p, h) != h)
        files[kind] = {**_plain(sides(*pair)), "differ": differ}
    libraries = {}
    for name in LIBRARIES:
        both = [wheel.libraries.get(name, _NONE) for wheel in (ours, theirs)]
        libraries[name] = {
            "bytes": [one.size for one in both],
            "code": [dict(sorted(one.code.items())) for one in both],
            "symbols": _plain(sides(*(one.symbols for one in both))),
        }
    return {
        "bytes": [ours.size, theirs.size],
        "installed": [ours.installed, theirs.installed],
        "files": files,
        "features": _plain(sides(ours.features, theirs.features)),
        "libraries": libraries,
    }


def _kind(path: str) -> str:
    if path.startswith("torch/include/"):
        return "headers"
    if re.search(r"\.pyi?$", path):
        return "modules"
    return "libraries" if re.search(r"\.so[.0-9]*$", path) else "others"


def _plain(compared: Sides) -> dict[str, object]:
    return {"both": compared.both, "ours": compared.ours, "theirs": compared.theirs}


def table(found: Mapping[str, Any]) -> str:
    """The report as a table in Markdown, with counts in place of names."""
    rows = [
        ("wheel", *(_megabytes(size) for size in found["bytes"]), ""),
        ("installed", *(_megabytes(size) for size in found["installed"]), ""),
    ]
    for kind, one in found["files"].items():
        totals = [one["both"] + len(one[side]) for side in ("ours", "theirs")]
        rows.append(
            (kind, *map(str, totals), f"{one['both']} in both, {len(one['differ'])} differ")
        )
    for name, library in found["libraries"].items():
        code = (
            " ".join(sorted(codes, key=lambda t: (t[0], int(re.sub(r"\D", "", t))))) or "no code"
            for codes in library["code"]
        )
        sizes = (_megabytes(size) for size in library["bytes"])
        cells = (f"{size}, {targets}" for size, targets in zip(sizes, code, strict=True))
        rows.append((f"`{name}`", *cells, f"symbols: {_counts(library['symbols'])}"))
    features = found["features"]
    counts = [str(features["both"] + len(features[side])) for side in ("ours", "theirs")]
    only = "; ".join(f"only {side}: {', '.join(features[side])}" for side in ("ours", "theirs"))
    rows.append(("features", *counts, only))
    return "\n".join(markdown_table(("", "Ours", "Published", "Compared"), rows))


def _counts(one: Mapping[str, Any]) -> str:
    return f"{one['both']} in both, {len(one['ours'])} only ours, {len(one['theirs'])} only theirs"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def compare(wheels: tuple[Path, Path], scratch: Path) -> dict[str, Any]:
    """Two wheels as `report` compares them, ours first; libraries are unpacked into `scratch`."""
    return report(*(read(wheel, scratch / str(n)) for n, wheel in enumerate(wheels)))
