"""Lists of an image's machine code, made on this machine where the image itself runs emulated.

NVIDIA's cuobjdump reads a library of any platform, and takes seconds natively; within an emulator
it takes minutes. The checks inside the image read the lists in place of running it.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch_images.config.lock_requests import tool_input
from torch_images.errors import VerifyError
from torch_images.fetch.tools import install_tools
from torch_images.host.engine import RunningContainer
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.platforms import native

LIBRARIES = ("libtorch_cuda.so", "libtorch_cuda_linalg.so")
KINDS = ("elf", "ptx")
# What it says of a library without such code; its exit code is not 0 then.
_NOTHING = "cuobjdump info"


def listings(
    container: RunningContainer, site_packages: str, workspace: Workspace, run: Runner
) -> dict[str, bytes]:
    """What cuobjdump says of torch's libraries, such as "libtorch_cuda.so.elf", in bytes.

    `site_packages` is the folder in the container that has torch. A library that the image lacks is
    left out. Raises VerifyError where cuobjdump does not run, LockError where it cannot be had.
    """
    tools = install_tools(tool_input("tools-code", native()).name, workspace, run)
    [program] = tools.rglob("bin/cuobjdump")
    found = {}
    for library in LIBRARIES:
        path = f"{site_packages}/torch/lib/{library}"
        if container.exec("test", "-e", path).code:
            continue
        with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(len(KINDS)) as pool:
            copy = Path(scratch, library)
            copy.write_bytes(container.read(path))

            def listing(kind: str, copy: Path = copy) -> str:
                done = run.run([str(program), f"--list-{kind}", str(copy)], check=False)
                if done.code and not done.errors.startswith(_NOTHING):
                    raise VerifyError(f"cuobjdump cannot read {copy.name}: {done.errors[-200:]}")
                return done.output

            for kind, text in zip(KINDS, pool.map(listing, KINDS), strict=True):
                found[f"{library}.{kind}"] = text.encode()
    return found
