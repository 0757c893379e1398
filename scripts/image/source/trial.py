"""Load a packed wheel as an image would: every library of it, then the package.

The linker accepts a shared library that lacks symbols, and Python's packaging looks at none. So the
wheel is installed in a folder of its own, beside links to what the build's environment has, and the
system's loader resolves each library there, with all functions that it would bind later.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from removals import is_elf

# The driver brings these: the container toolkit, or the entrypoint, provides them at run time.
# Their symbols start so.
DRIVER = {"libcuda.so.1": "cu", "libnvidia-ml.so.1": "nvml"}

_MISSING = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
_RESOLVED = re.compile(r"^\s*\S+ => (/.+) \(0x\w+\)", re.MULTILINE)
_UNDEFINED = re.compile(r"^undefined symbol: ([^\s,]+).*\((.+)\)", re.MULTILINE)
_VERSION = re.compile(r"version `(\S+)' not found \(required by (.+)\)")
_NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
_IMPORTED = "imported"
# torch compares the cuDNN whose headers it was compiled with and the one that is there.
_THEN = {"torch": "torch.backends.cudnn.version()"}
_FATAL = "Fatal Python error"  # of faulthandler: the stack of Python follows
_SHOWN = 4


def problems(imports: Sequence[str], wheel: Path, site: Path, folder: Path) -> list[str]:
    """A message for each thing that keeps a packed wheel from being loaded.

    `imports` are modules, the wheel's last; `site` the site-packages of the build, where NVIDIA's
    libraries and the wheel's requirements are; `folder` does not exist yet, and can be deleted
    afterwards.
    """
    install(wheel, site, folder)
    return [*unresolved(folder)] or [*unimportable(imports, folder)]


def install(wheel: Path, site: Path, folder: Path) -> None:
    """Unpack a wheel to `folder`, and link all of `site` there that is not of the same package."""
    folder.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)  # packed by this build
    own = wheel.name.partition("-")[0].lower()
    for path in sorted(site.iterdir()):
        other = path.name.lower().partition("-")[0] != own or path.suffix != ".dist-info"
        if other and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path.resolve())


def unresolved(folder: Path) -> Iterator[str]:
    """A message for each library of a folder, links left out, that lacks libraries or symbols.

    A library may take symbols from what needs it: libtorch_nvshmem.so of published torch takes
    those of libc10_cuda.so, which only libtorch_cuda.so needs beside it. So a symbol is undefined
    if it is so wherever the library is loaded, by itself and with others of the folder.
    """
    lacking: dict[Path, set[str]] = {}
    for path in sorted(p for p in _own(folder) if ".so" in p.name and is_elf(p)):
        output = _loader(path)
        yield from _unfound(path, folder, output)
        undefined: dict[Path, set[str]] = {path.resolve(): set()}
        for where in _RESOLVED.findall(output):
            if _is_inside(where, folder):
                undefined[Path(where).resolve()] = set()
        for symbol, where in _UNDEFINED.findall(output):
            if _is_inside(where, folder):
                undefined.setdefault(Path(where).resolve(), set()).add(symbol)
        for library, symbols in undefined.items():
            lacking[library] = lacking.get(library, symbols) & symbols
    for library in sorted(lacking):
        foreign = (s for s in lacking[library] if not in_interpreter(s))
        if missing := sorted(s for s in foreign if not _of_driver(s, library)):
            yield f"{library.relative_to(folder.resolve())} has {_listed(missing)}"


def unimportable(imports: Sequence[str], folder: Path) -> Iterator[str]:
    """A message if modules cannot be imported from a folder, the only one in Python's path.

    Or if the last is torch, and was compiled with the headers of another cuDNN than is beside it.
    All that Python said is printed. After a C++ exception that nothing caught, that is where the
    import was.
    """
    name = imports[-1]
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import {', '.join(imports)}"
    code += f"; print({_IMPORTED!r}); {_THEN.get(name, '')}"
    command = [sys.executable, "-I", "-S", "-B", "-X", "faulthandler", "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr, flush=True)
        own = done.stderr.partition(_FATAL)[0].strip().splitlines()
        errors = own or [f"it ends with status {done.returncode}"]
        what = (
            "does not fit what is beside it" if _IMPORTED in done.stdout else "cannot be imported"
        )
        yield f"{name} {what}: {errors[-1].strip().replace(f'{folder}/', '')}"


def in_interpreter(symbol: str) -> bool:
    """Whether this interpreter, which modules are loaded into, has a symbol for them."""
    return hasattr(_interpreter(), symbol)


def _own(folder: Path) -> Iterator[Path]:
    """The files of a folder, but for those behind links."""
    for top, _, names in os.walk(folder):
        yield from (Path(top, name) for name in sorted(names))


def _unfound(path: Path, folder: Path, output: str) -> Iterator[str]:
    """A message for each library, or version of one, that the loader did not find for `path`."""
    place = path.relative_to(folder)
    for need in dict.fromkeys(_MISSING.findall(output)):
        if need not in DRIVER:
            yield f"{place} needs {need}, which nothing has"
    for version, where in dict.fromkeys(_VERSION.findall(output)):
        if Path(where).resolve() == path.resolve():
            yield f"{place} needs a library of version {version}"


def _listed(symbols: Sequence[str]) -> str:
    more = ", ..." if len(symbols) > _SHOWN else ""
    what = "undefined symbol" + ("s" if len(symbols) > 1 else "")
    return f"{len(symbols)} {what}: {', '.join(symbols[:_SHOWN])}{more}"


def _is_inside(where: str, folder: Path) -> bool:
    """Whether a path is below a folder, and not behind a link: NVIDIA's libraries are."""
    return Path(where).resolve().is_relative_to(folder.resolve())


def _of_driver(symbol: str, path: Path) -> bool:
    """Whether a symbol is the driver's, which a build does not have, and the library says so."""
    start = next((s for s in DRIVER.values() if re.match(rf"{s}[A-Z]", symbol)), None)
    return start is not None and any(DRIVER.get(need) == start for need in _needed(path))


@functools.cache
def _needed(path: Path) -> tuple[str, ...]:
    command = ["readelf", "--dynamic", "--wide", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return tuple(_NEEDED.findall(done.stdout))


@functools.cache
def _interpreter() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _loader(path: Path) -> str:
    """What the system's loader says of a library when it binds all symbols at once."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("LD_")}
    done = subprocess.run(
        ["ldd", "-r", path],
        env={**env, "LC_ALL": "C"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.stdout
