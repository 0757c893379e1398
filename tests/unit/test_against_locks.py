"""The checks that compare an image with its locks, on images that have more, less, or another."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.conftest import ROOT
from torch_images.build.plan import plan_images
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.verify.verify import claim

LOCKED = {"torch": "2.11.0", "filelock": "4.2"}


def suite(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the suites, without the torch and the Triton that it asks for their versions."""
    for missing in ("torch", "triton"):
        monkeypatch.setitem(sys.modules, missing, ModuleType(missing))
    spec = importlib.util.spec_from_file_location("of_the_suite", ROOT / "tests" / name)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def installed(folder: Path, packages: dict[str, str], requires: str = "filelock>=4") -> Path:
    """An environment with packages, the first of which needs another."""
    for name, version in packages.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        needs = f"Requires-Dist: {requires}\n" if name == "torch" else ""
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        )
    return folder


@pytest.mark.parametrize(
    "found",
    [
        {"torch": "2.11.0"},
        {**LOCKED, "numpy": "1"},
        {**LOCKED, "torch": "2.10.0"},
    ],
)
def test_wheels_other_than_the_locked_ones_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, str]
) -> None:
    check = suite("container/test_versions.py", monkeypatch).test_packages_are_the_locked_ones
    check({"site_packages": str(installed(tmp_path / "good", LOCKED)), "packages": LOCKED})
    with pytest.raises(AssertionError):
        check({"site_packages": str(installed(tmp_path / "bad", found)), "packages": LOCKED})


@pytest.mark.parametrize("requires", ["numpy", "filelock>=5"])
def test_a_requirement_that_no_lock_meets_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requires: str
) -> None:
    check = suite("container/test_versions.py", monkeypatch).test_every_requirement_is_met
    check({"site_packages": str(installed(tmp_path / "good", LOCKED)), "packages": LOCKED})
    bad = installed(tmp_path / "bad", LOCKED, requires)
    with pytest.raises(AssertionError):
        check({"site_packages": str(bad), "packages": LOCKED})


DEBS = {"bash": "5", "tini": "0.19"}


@pytest.mark.parametrize(
    ("found", "bootstrapped"),
    [
        ({"bash": "5"}, True),
        ({"bash": "5"}, False),
        ({**DEBS, "tini": "0.20"}, False),
        ({**DEBS, "curl": "1"}, True),
    ],
)
def test_debian_packages_other_than_the_locked_ones_fail(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, str], bootstrapped: bool
) -> None:
    check = suite("image/test_inputs.py", monkeypatch).test_has_the_locked_debian_packages
    check(DEBS, {"debs": DEBS, "bootstrapped": bootstrapped})
    check({**DEBS, "of-the-image": "1"}, {"debs": DEBS, "bootstrapped": False})
    with pytest.raises(AssertionError):
        check(found, {"debs": DEBS, "bootstrapped": bootstrapped})


@pytest.mark.parametrize("asked", [{}, {"variant": "pod"}, {"source": "fork"}])
def test_what_an_image_is_compared_with_is_all_of_its_lock(
    config: Config, root: Path, asked: dict[str, str]
) -> None:
    [planned] = plan_images(config, [choose(config, **asked)], root, root / "locks")
    claimed, lock = claim(config, planned, ""), planned.lock
    locked = {wheel.name: wheel.version for wheel in lock.all_wheels} | lock.compiled
    assert claimed["packages"] == locked
    assert {"torch", "triton"} <= locked.keys()
    assert claimed["debs"] == {deb.name: deb.version for deb in lock.all_debs}
    assert claimed["locks"] == lock.texts()
