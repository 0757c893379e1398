"""Checks that compile for minutes in an emulator, and need not run again for the same packages.

What compilers make depends on an image's packages, not on the programs of ours that run at its
start. A passed run in an emulator leaves a record. On the machine's own processor these checks take
seconds, and always run.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from torch_images.build.plan import ImagePlan
from torch_images.host.cache import Part
from torch_images.host.workspace import Workspace
from torch_images.verify.suites import files_below, files_hash

# By module and function, in tests/container.
CHECKS = (
    "test_arch.py::test_triton_compiles_to_machine_code",
    "test_compile.py::test_compiled_function_equals_eager",
    "test_toolkit.py::test_an_extension_of_torch_is_compiled",
    "test_toolkit.py::test_cmake_finds_every_part",
    "test_toolkit.py::test_nvcc_compiles_links_and_runs",
)
# Programs that run at the start, in the context of a build.
_AT_START = ("commands/", "runtime/")


def record(plan: ImagePlan, workspace: Workspace) -> Path:
    """The file that is there if CHECKS passed in an emulator with these packages."""
    files = tuple(f for f in plan.context.files if not f.path.startswith(_AT_START))
    packages = replace(plan.context, files=files).digest
    code = files_hash(files_below(workspace.root, "tests/container"))
    name = hashlib.sha256(f"{packages} {code}".encode()).hexdigest()
    return workspace.cache / Part.CHECKED / name
