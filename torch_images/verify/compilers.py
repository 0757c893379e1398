"""Checks that compile for minutes in an emulator, and need not run again for the same packages.

What compilers make depends on an image's packages, and on what of ours Python loads beside torch. A
passed run in an emulator leaves a record of these. It does not count the programs that prepare a
container's environment: images for the machine's own processor have the same ones, and there these
checks take seconds and always run.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from torch_images.build.plan import ImagePlan
from torch_images.host.cache import Part, used, write
from torch_images.host.emulation import processor
from torch_images.host.workspace import Workspace
from torch_images.project import PACKAGE
from torch_images.verify.suites import Check, files_below, files_hash

# By module and function, in tests/container.
CHECKS = (
    "test_arch.py::test_triton_compiles_to_machine_code",
    "test_compile.py::test_compiled_function_equals_eager",
    "test_toolkit.py::test_an_extension_of_torch_is_compiled",
    "test_toolkit.py::test_cmake_finds_every_part",
    "test_toolkit.py::test_nvcc_compiles_links_and_runs",
)
# Programs that prepare an environment, in the context of a build: not runtime/_torch_images/.
_AT_START = re.compile(r"(?:commands|runtime|runtime/torch_images/inside)/[^/]+")


def record(plan: ImagePlan, workspace: Workspace) -> Path:
    """The file that is there if CHECKS passed in an emulator with these packages."""
    files = tuple(f for f in plan.context.files if not _AT_START.fullmatch(f.path))
    packages = replace(plan.context, files=files).digest
    code = files_below(workspace.root, "tests/container")
    code["arch.py"] = (PACKAGE / "arch.py").read_bytes()
    facts = f"{packages} {files_hash(code)} {processor(plan.spec.platform)}"
    return workspace.cache / Part.CHECKED / hashlib.sha256(facts.encode()).hexdigest()


def keep(path: Path, digest: str, *, passed: bool) -> None:
    """Record whether CHECKS passed in an image, in place of an earlier record."""
    if passed:
        write(path, f"{digest}\n")
    else:
        path.unlink(missing_ok=True)


def left_out(path: Path) -> tuple[Check, ...]:
    """CHECKS as a report shows them that did not run because of a record."""
    message = f"no failure with the same packages in {used(path).read_text().strip()}"
    names = (check.replace(".py::", "/") for check in CHECKS)
    return tuple(
        Check(name=f"container/{name}", outcome="skipped", seconds=0, message=message)
        for name in names
    )
