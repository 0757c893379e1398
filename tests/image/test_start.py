"""The entrypoint: PyTorch uses the settings that it makes, and it says which libcuda it chose."""

from __future__ import annotations

import json
from typing import Any

import pytest
from packaging.version import Version
from testinfra.host import Host

# torch reads these settings also without a GPU.
PRINT_SETTINGS = (
    "import json, torch; settings = torch.cuda.memory._snapshot()['allocator_settings']; "
    "print(json.dumps([torch.get_float32_matmul_precision(), settings['expandable_segments']]))"
)


@pytest.mark.parametrize(
    ("profile", "found"),
    [("on", ["high", True]), ("off", ["highest", False])],
    ids=["on", "off"],
)
def test_profile_is_in_force(
    host: Host, expected: dict[str, Any], profile: str, found: list[Any]
) -> None:
    if Version(expected["torch"]) < Version("2.9.0a0"):  # it reads an older name of the setting
        found = [found[0], False]
    settings = f"TORCH_IMAGE_QUIET=1 TORCH_IMAGE_PROFILE={profile}"
    command = "/usr/local/bin/torch-entrypoint /opt/venv/bin/python -c"
    said = host.check_output(f'env -i {settings} {command} "{PRINT_SETTINGS}"')
    assert json.loads(said) == found


def test_start_says_what_it_chose(host: Host) -> None:
    done = host.run("torch-entrypoint true")
    assert done.rc == 0
    assert done.stdout == ""
    assert done.stderr.startswith("torch-images: CUDA ")
    assert done.stderr.count("\n") == 1


def test_doctor_agrees_with_the_start(host: Host) -> None:
    line = host.run("torch-entrypoint true").stderr.removeprefix("torch-images: ").strip()
    assert json.loads(host.run("cuda-doctor --json").stdout)["summary"] == line
