"""When the project's own programs run in an image: once for each torch and Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.fakes import workspace_of
from torch_images.host.workspace import Workspace
from torch_images.platforms import AMD64, ARM64, Platform
from torch_images.verify.programs import Records

# A module of the Python of images, and one that starts programs as a container does.
PRECISION, START = "test_precision.py", "test_start.py"
FILES = {
    f"tests/programs/{PRECISION}": "",
    f"tests/programs/{START}": 'command = expected["entrypoint"]',
    "tests/container/processes.py": "",
    "tests/container/test_arch.py": "",
    "scripts/bench/cases.py": "",
    "scripts/image/runtime/_torch_images/after_torch.py": "",
    "scripts/image/runtime/start.py": "",
    "scripts/image/commands/torch-entrypoint": "",
}
CLAIM: dict[str, Any] = {
    "torch": "2.14.1+cu130",
    "python": "3.13",
    "system": "debian trixie",
    "platform": "linux/amd64",
    "packages": {"torch": "2.14.1", "pip": "26.0", "sympy": "1.14"},
    "locks": {"wheel-cu130.json": "one"},
    "id": "cu130",
}
ON_ARM64 = {**CLAIM, "platform": "linux/arm64"}


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return workspace_of(tmp_path, tmp_path / "cache")


def missing(
    space: Workspace, claim: Mapping[str, Any] = CLAIM, machine: Platform = AMD64
) -> set[str]:
    return {*Records(space, claim, machine).missing()}


def exists(space: Workspace, claim: Mapping[str, Any] = CLAIM, machine: Platform = AMD64) -> bool:
    return not missing(space, claim, machine)


def keep(space: Workspace, claim: Mapping[str, Any] = CLAIM, machine: Platform = AMD64) -> None:
    for module in (PRECISION, START):
        Records(space, claim, machine).keep(module, "sha256:1")


@pytest.mark.parametrize(
    "change",
    [
        {"id": "cu130-sm90"},
        {"packages": {**CLAIM["packages"], "sympy": "1.15"}},
        {"locks": {"wheel-cu130.json": "two"}},
    ],
    ids=str,
)
def test_record_is_shared_by_images_of_one_torch(space: Workspace, change: dict[str, Any]) -> None:
    assert not exists(space, {**CLAIM, **change})
    keep(space)
    assert exists(space, {**CLAIM, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"torch": "2.15.0+cu130"},
        {"python": "3.14"},
        {"system": "debian forky"},
        {"packages": {**CLAIM["packages"], "pip": "27.0"}},
        {"packages": {**CLAIM["packages"], "flash-attn-4": "4.0"}},
        {"locks": {"source-torch.json": "a commit"}},
    ],
    ids=str,
)
def test_record_is_missing_for_another_torch_or_python(
    space: Workspace, change: dict[str, Any]
) -> None:
    keep(space)
    assert not exists(space, {**CLAIM, **change})


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        (f"tests/programs/{PRECISION}", {PRECISION}),
        ("tests/container/processes.py", {PRECISION, START}),
        ("tests/container/test_arch.py", set()),
        ("scripts/bench/cases.py", {PRECISION, START}),
        ("scripts/image/runtime/_torch_images/after_torch.py", {PRECISION, START}),
        ("scripts/image/runtime/start.py", {START}),
        ("scripts/image/commands/torch-entrypoint", {START}),
    ],
)
def test_record_is_missing_after_a_change_of_what_a_module_runs(
    space: Workspace, name: str, modules: set[str]
) -> None:
    """Checks that each image passes by itself are no part of it."""
    keep(space)
    (space.root / name).write_text("changed: entrypoint")
    assert missing(space) == modules


def test_record_is_of_one_module(space: Workspace) -> None:
    Records(space, CLAIM, AMD64).keep(START, "sha256:1")
    assert missing(space) == {PRECISION}


def test_modules_that_passed_by_the_ledger_are_not_missing(space: Workspace) -> None:
    """For another image of the same torch, and until a file of one changes."""
    passed = {Records(space, CLAIM, AMD64).identity}
    assert not Records(space, {**CLAIM, "id": "cu130-sm90"}, AMD64, passed).missing()
    assert not Records(space, ON_ARM64, AMD64, passed).missing()
    assert len(Records(space, {**CLAIM, "torch": "2.15.0+cu130"}, AMD64, passed).missing()) == 2
    emulated = {Records(space, ON_ARM64, AMD64).identity}
    assert len(Records(space, ON_ARM64, ARM64, emulated).missing()) == 2
    (space.root / "tests" / "programs" / START).write_text("changed: entrypoint")
    assert len(Records(space, CLAIM, AMD64, passed).missing()) == 2


def test_record_of_a_processor_counts_for_an_emulator(space: Workspace) -> None:
    keep(space)
    assert exists(space, machine=ARM64)
    assert exists(space, ON_ARM64)
    assert not exists(space, {**ON_ARM64, "torch": "2.15.0+cu130"})


def test_record_of_an_emulator_does_not_count_for_a_processor(space: Workspace) -> None:
    keep(space, ON_ARM64)
    assert exists(space, ON_ARM64)
    assert not exists(space, ON_ARM64, machine=ARM64)
    assert not exists(space)
