"""Change a compiled wheel so that it finds NVIDIA's libraries and has reproducible bytes.

The search paths of its libraries are set to the packages of the image. The wheel is packed in a
fixed order, with fixed times and modes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from removals import is_elf
from trial import DRIVER


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpack a wheel below `folder`, which must not exist. Returns the folder with its files."""
    folder.mkdir(parents=True)
    _python("-m", "wheel", "unpack", "--dest", str(folder), str(wheel))
    [files] = folder.iterdir()
    return files


def pack(files: Path, folder: Path) -> Path:
    """Pack the folder that `unpack` returned, with the times of SOURCE_DATE_EPOCH.

    Returns the path of the wheel, which is in `folder`.
    """
    for path in files.rglob("*"):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)
    folder.mkdir(parents=True, exist_ok=True)
    _python("-m", "wheel", "pack", "--dest-dir", str(folder), str(files))
    [wheel] = folder.glob("*.whl")
    return wheel


def set_search_paths(files: Path, site: Path) -> list[str]:
    """Set the RPATH of every library to the folders with the libraries that it needs.

    These are in the wheel itself, in NVIDIA's packages or in torch. `site` is the site-packages
    folder where all of them will be installed. Returns a line for each needed library that was not
    found.
    """
    provided = {path.name: path.parent for path in sorted(files.rglob("*.so*"))}
    nvidia = {p.name: p.parent for p in sorted((site / "nvidia").glob("*/lib/*.so*"))}
    torch = {p.name: p.parent for p in sorted((site / "torch" / "lib").glob("*.so*"))}
    system = _system_libraries()
    problems = []
    for path in _libraries(files):
        folders = []
        for need in _patchelf("--print-needed", str(path)).split():
            if need in provided:
                folders.append(provided[need])
            elif place := nvidia.get(need) or torch.get(need):
                folders.append(files / place.relative_to(site))
            elif need not in system and need not in DRIVER:
                problems.append(f"{path.relative_to(files)} needs {need}, which no package has")
        # NVIDIA's libraries load others at run time, such as the engines of cuDNN.
        folders += [files / f.relative_to(site) for f in sorted(set(nvidia.values()))]
        steps = [os.path.relpath(folder, path.parent) for folder in dict.fromkeys(folders)]
        origin = [f"$ORIGIN/{step}" if step != "." else "$ORIGIN" for step in steps]
        _patchelf("--set-rpath", ":".join(origin), str(path))
    return problems


def _libraries(files: Path) -> Iterator[Path]:
    yield from filter(is_elf, sorted(files.rglob("*.so*")))


def _system_libraries() -> frozenset[str]:
    listing = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    return frozenset(line.split()[0] for line in listing.stdout.splitlines()[1:] if "=>" in line)


def _patchelf(*words: str) -> str:
    return subprocess.run(["patchelf", *words], capture_output=True, text=True, check=True).stdout


def _python(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True, stdout=sys.stderr)
