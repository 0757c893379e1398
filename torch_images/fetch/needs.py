"""The symbols and libraries of torch and CUDA that a wheel's libraries need.

A wheel compiled for another torch fails when it is imported, or worse, later. Its needs can be read
without running it: torch's libraries must define each symbol of torch that it uses. For C++ symbols
this is not enough, because they say nothing about the layout of objects. For symbols of torch's C
interface, the base of its stable ABI, it is
(https://docs.pytorch.org/docs/stable/notes/libtorch_stable_abi.html).
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from packaging.metadata import Metadata

from torch_images.errors import LockError

# Mangled names of anything in a namespace of torch, or of its table, type or guard.
_CXX = re.compile(r"_Z(?:T[A-Z]|GV)?N?[KVRO]*(?:3c10|2at|5torch|6caffe2)[0-9A-Z]")
_STABLE = re.compile(r"(?:aoti_torch_|torch_)[a-z]")
_LIBRARY = re.compile(r"\.so(?:\.[0-9.]+)?$")
_CUDART = re.compile(r"libcudart\.so\.([0-9]+)")
_LARGEST = 4 << 30  # bytes of a library, unpacked


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The needs of a compiled wheel.

    `pins`: its requirements of torch, such as "torch==2.11.0".
    `cxx`, `stable`: the symbols of torch that its libraries use, of C++ and of the C interface.
    `cudart`: the major versions of CUDA's runtime that its libraries load.
    """

    pins: tuple[str, ...]
    cxx: frozenset[str]
    stable: frozenset[str]
    cudart: frozenset[int]


def exports(folder: Path) -> frozenset[str]:
    """The symbols that torch's libraries in a folder define, limited to torch's own.

    Raises LockError for a damaged library.
    """
    names: set[str] = set()
    for path in sorted(folder.glob("*.so*")):
        with path.open("rb") as file:
            names |= _symbols(file, path.name)[0]
    return frozenset(name for name in names if _CXX.match(name) or _STABLE.match(name))


def read_needs(wheel: Path) -> Needs:
    """The needs of a wheel. Raises LockError if it is not a wheel, or has a damaged library."""
    defined: set[str] = set()
    used: set[str] = set()
    loaded: set[str] = set()
    try:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                if not _LIBRARY.search(info.filename) or info.file_size > _LARGEST:
                    continue
                file = io.BytesIO(archive.read(info))
                ours, theirs, needed = _symbols(file, PurePosixPath(info.filename).name)
                defined |= ours
                used |= theirs
                loaded |= needed
            pins = tuple(_pins(archive))
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError) as error:
        raise LockError(f"{wheel.name} cannot be read: {error}") from None
    used -= defined
    majors = (_CUDART.match(name) for name in loaded)
    return Needs(
        pins=pins,
        cxx=frozenset(name for name in used if _CXX.match(name)),
        stable=frozenset(name for name in used if _STABLE.match(name)),
        cudart=frozenset(int(match[1]) for match in majors if match),
    )


def _pins(archive: zipfile.ZipFile) -> Iterator[str]:
    """The requirements of torch in a wheel's metadata."""
    name = next(
        (n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)), ""
    )
    if not name:
        return
    for requirement in Metadata.from_email(archive.read(name), validate=False).requires_dist or ():
        if requirement.name.lower() == "torch" and not requirement.marker:
            yield str(requirement)


def _symbols(file: IO[bytes], name: str) -> tuple[set[str], set[str], set[str]]:
    """The dynamic symbols that a library defines and uses, and the libraries that it loads."""
    defined: set[str] = set()
    used: set[str] = set()
    needed: set[str] = set()
    try:
        elf = ELFFile(file)
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                needed |= {str(vars(tag)["needed"]) for tag in section.iter_tags("DT_NEEDED")}
            elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
                for symbol in section.iter_symbols():
                    if symbol["st_shndx"] != "SHN_UNDEF":
                        defined.add(symbol.name)
                    elif symbol["st_info"]["bind"] != "STB_WEAK":  # a weak one may be missing
                        used.add(symbol.name)
    except (ELFError, ValueError, LookupError, AttributeError, TypeError, AssertionError) as error:
        raise LockError(f"{name} is not a shared library: {error}") from None
    return defined, used, needed
