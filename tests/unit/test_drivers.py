"""Drivers as programs and people write them, and the first and last one that supports a GPU."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.pick.drivers import Driver, find_driver, remedy, unsupported
from torch_images.pick.gpus import find_gpu

SMI = "| NVIDIA-SMI 570.133.20             Driver Version: 570.133.20     CUDA Version: 12.8     |"
NEW_SMI = "| NVIDIA-SMI 615.71.09   KMD Version: 615.71.09   CUDA UMD Version: 13.4 |"
NVRM = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs)"


@pytest.mark.parametrize(
    ("written", "version", "branch"),
    [
        ("570.133", "570.133", ""),
        ("580.65", "580.65.06", ""),  # the only one of these numbers
        ("570.133.20-0ubuntu1", "570.133.20", ""),
        ("nvidia-driver-570_570.133.20-0ubuntu0.24.04.1_amd64.deb", "570.133.20", ""),
        (SMI, "570.133.20", ""),
        (NEW_SMI, "615.71.09", ""),
        (NVRM, "580.159.04", ""),
        ("NVIDIA H100 80GB HBM3, 550.54.15", "550.54.15", ""),
        *((one, "570.26", "570") for one in ("570", "R570", "570-server", "570.xx", "570+")),
        *((one, "570.26", "570") for one in ("nvidia-driver-570-server", "driver 570")),
        ("580", "580.65.06", "580"),
        ("595", "595.45.04", "595"),
        ("650", "650.00", "650"),
    ],
)
def test_find_driver_spellings(real: Config, written: str, version: str, branch: str) -> None:
    assert find_driver(real, written) == Driver(version=version, branch=branch)


@pytest.mark.parametrize(
    "written",
    [
        *("", "57", "5700", "²55", "12.8", "13.0.2", "CUDA 13.0", "cuda12.8"),
        *("192.168.100.200", "535.10 or 570.20", "<img onerror=alert(123)>"),
        # In a container, nvidia-smi can be another version than the host's driver.
        SMI.replace("SMI 570.133.20", "SMI 575.57.08"),
    ],
)
def test_find_driver_refuses_text(real: Config, written: str) -> None:
    with pytest.raises(UsageError, match="is not a driver's version; give what this prints"):
        find_driver(real, written)


@given(st.text(max_size=40) | st.from_regex(r"[a-z -]{0,9}[0-9]{3}[0-9.]{0,8}[a-z .-]{0,9}"))
def test_find_driver_of_any_text(real: Config, text: str) -> None:
    try:
        driver = find_driver(real, text)
    except UsageError as error:
        assert "\n" not in str(error)
        return
    assert re.fullmatch(r"[1-9][0-9]{2}\.[0-9.]+", driver.version)
    assert find_driver(real, driver.version).version == driver.version


@pytest.mark.parametrize(
    ("gpu", "driver", "problem", "install"),
    [
        ("RTX 5090", "565.57.01", "first branch that does is 570, and a compat", "580 or newer"),
        ("12.0", "550.00", "driver 550.00 does not support GPU 12.0: the first ", "580 or newer"),
        ("B300", "570.133.20", "first branch that does is 575", "580 or newer"),
        ("GB10", "570.26", "first branch that does is 575", "580 or newer"),
        ("Thor", "575.57.08", "first branch that does is 580", "580 or newer"),
        ("H100", "470.82.01", "first branch that does is 520", "580 or newer"),
        ("RTX 3090", "450.80.02", "first branch that does is 455", "580 or newer"),
        ("V100", "595.45.04", "last branch that does is 580", "580"),
        ("RTX 5090", "570.26", "", "580 or newer"),
        ("B300", "575.51.03", "", "580 or newer"),
        ("V100", "580.178.04", "", "580"),
    ],
)
def test_unsupported_drivers_of_a_gpu(
    real: Config, gpu: str, driver: str, problem: str, install: str
) -> None:
    model = find_gpu(real, gpu)
    assert problem in (reason := unsupported(model, driver))
    assert bool(problem) == bool(reason)
    assert remedy(real, model) == f"install driver {install}"
