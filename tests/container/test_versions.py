"""The installed versions are those of the locks."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from importlib.metadata import distributions
from typing import Any

import torch
import triton

Observe = Callable[[str, object], None]


def test_cuda_version(expected: dict[str, Any], observe: Observe) -> None:
    observe("cuda", torch.version.cuda)
    assert torch.version.cuda == expected["cuda"]


def test_torch_version(expected: dict[str, Any], observe: Observe) -> None:
    observe("torch", torch.__version__)
    assert torch.__version__ == expected["torch"]


def test_triton_version(expected: dict[str, Any], observe: Observe) -> None:
    observe("triton", triton.__version__)
    assert triton.__version__ == expected["triton"]


def test_python_version(expected: dict[str, Any], observe: Observe) -> None:
    observe("python", platform.python_version())
    assert platform.python_version().rpartition(".")[0] == expected["python"]


def test_packages_are_the_locked_ones(expected: dict[str, Any]) -> None:
    # pytest and the other packages of these checks are in another folder.
    installed = {
        re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d.version
        for d in distributions(path=[expected["site_packages"]])
    }
    installed.pop(expected["own_package"], None)  # not locked: the build makes it
    assert installed == expected["packages"]


def test_every_requirement_is_met(expected: dict[str, Any]) -> None:
    from packaging.requirements import Requirement

    unmet = []
    for d in distributions(path=[expected["site_packages"]]):
        for line in d.requires or ():
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            found = expected["packages"].get(name)
            if found is None or not requirement.specifier.contains(found, prereleases=True):
                unmet.append(f"{d.metadata['Name']} needs {requirement}, found {found}")
    assert not unmet
