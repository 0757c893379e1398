"""Lists of the machine code in an image's torch, cached by the bytes of each library.

NVIDIA's cuobjdump takes seconds to list a library of torch, and lists the same bytes always in the
same way. So the lists are cached by the SHA-256 of the library and of cuobjdump. Both hashes are
computed in the container under test, so a library that another layer replaced is listed again.

An image that runs natively provides cuobjdump, from Triton. In an emulator it would take minutes.
There, this machine's cuobjdump reads a copy of the library.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from pathlib import Path

from torch_images.config.lock_requests import tool_input
from torch_images.errors import VerifyError
from torch_images.fetch.tools import install_tools
from torch_images.host.cache import Part, used, write
from torch_images.host.container import RunningContainer
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.platforms import native

LIBRARIES = ("libtorch_cuda.so", "libtorch_cuda_linalg.so")
KINDS = ("elf", "ptx")
_ASK = tuple(f"--list-{kind}" for kind in KINDS)
_PROGRAM = "triton/backends/nvidia/bin/cuobjdump"
# Its output for a library without code of the kind; its exit code is not 0 then.
_NOTHING = "cuobjdump info"
_SCRATCH = "/torch-images-lists"  # in the container of the inside checks

# A library's lists by kind, e.g. {"elf": "ELF file    1: torch.1.sm_90.cubin\n", "ptx": ""}.
Lists = dict[str, str]


def listings(
    container: RunningContainer,
    site_packages: str,
    workspace: Workspace,
    run: Runner,
    *,
    emulated: bool = False,
    fresh: bool = False,
) -> dict[str, bytes]:
    """The lists of torch's libraries as files by name, e.g. "libtorch_cuda.so.elf".

    `site_packages` is the container's folder with torch and Triton. Libraries that the image lacks
    are left out, and so are those that the image's cuobjdump cannot read: the inside checks then
    run it themselves, and fail with its message. With `fresh`, ignores cached lists. Raises
    VerifyError if this machine's cuobjdump cannot read a library, LockError if it is not locked.
    """
    program = f"{site_packages}/{_PROGRAM}"
    paths = {name: f"{site_packages}/torch/lib/{name}" for name in LIBRARIES}
    hashes = _hashes(container, [program, *paths.values()])
    here = _program(workspace, run) if emulated else None
    if here:
        hashes[program] = hashlib.sha256(here.read_bytes()).hexdigest()
    if program not in hashes:
        return {}
    files: dict[str, bytes] = {}
    for name, path in paths.items():
        if path not in hashes:
            continue
        kept = workspace.cache / Part.LISTINGS / f"{key(hashes[path], hashes[program])}.json"
        lists: Lists | None
        if kept.exists() and not fresh:
            lists = json.loads(used(kept).read_bytes())
        else:
            lists = (
                _listed_here(container, path, here, run)
                if here
                else _listed_inside(container, path, program)
            )
            if lists is not None:
                write(kept, json.dumps(lists))
        files |= {f"{name}.{kind}": text.encode() for kind, text in (lists or {}).items()}
    return files


def key(library: str, program: str) -> str:
    """The name of cached lists, from the SHA-256 of the library and of cuobjdump."""
    return hashlib.sha256(f"{library} {program}".encode()).hexdigest()


def _hashes(container: RunningContainer, paths: list[str]) -> dict[str, str]:
    """SHA-256 in hexadecimal of files in a container, by path; without missing files."""
    output = container.exec("sha256sum", "--", *paths).output
    lines = re.findall(r"^([0-9a-f]{64})  (/.+)$", output, re.MULTILINE)
    return {path: digest for digest, path in lines}


def _listed_inside(container: RunningContainer, path: str, program: str) -> Lists | None:
    """Lists of a library by the image's own cuobjdump; None if it fails.

    The engine merges the two output streams at any point, so the lists go through a file.
    """
    into = ("sh", "-c", f'exec "$@" 2>&1 >{_SCRATCH}', "sh")
    done = container.exec(*into, program, *_ASK, path)
    if _refused(done.code, done.output):
        return None
    return _parted(container.read(_SCRATCH).decode(errors="replace"))


def _listed_here(container: RunningContainer, path: str, program: Path, run: Runner) -> Lists:
    """Lists of a copy of a library by this machine's cuobjdump. Raises VerifyError."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, Path(path).name)
        copy.write_bytes(container.read(path))
        done = run.run([str(program), *_ASK, str(copy)], check=False)
    if _refused(done.code, done.errors):
        raise VerifyError(f"cuobjdump cannot read {copy.name}: {done.errors[-200:]}")
    return _parted(done.output)


def _refused(code: int, errors: str) -> bool:
    """Whether cuobjdump failed for another reason than a library without code."""
    return bool(code) and not all(line.startswith(_NOTHING) for line in errors.splitlines())


def _parted(output: str) -> Lists:
    """The lines of output by kind: each begins with its kind, e.g. "ELF file    1:"."""
    lines = output.splitlines(keepends=True)
    return {kind: "".join(x for x in lines if x.startswith(kind.upper())) for kind in KINDS}


def _program(workspace: Workspace, run: Runner) -> Path:
    """This machine's cuobjdump. Raises LockError if it is not available."""
    [program] = install_tools(tool_input("tools-code", native()).name, workspace, run).rglob(
        "bin/cuobjdump"
    )
    return program
