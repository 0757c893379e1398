"""NVIDIA's compat libraries: in the image if it says so, and for the drivers that it names."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from testinfra.host import Host

Facts = dict[str, Any]
FOLDER = "/opt/cuda-compat"
NOTE = "io.github.torch-images.compat.note"


@pytest.fixture(scope="module")
def folder(expected: Facts) -> str:
    """Where the image claims to have its compat libraries."""
    if not expected["compat"]:
        pytest.skip("the image claims to have no compat libraries")
    return str(expected["compat"])


def test_nothing_is_there_without_the_claim(host: Host, expected: Facts) -> None:
    there = host.check_output(f"find {FOLDER} -mindepth 1 -maxdepth 1 2>/dev/null || true")
    assert there.splitlines() == ([expected["compat"]] if expected["compat"] else [])


def test_nothing_is_where_the_container_toolkit_acts(host: Host) -> None:
    """The toolkit would use compat libraries on any GPU, also where they cannot work."""
    assert not host.file("/usr/local/cuda/compat").exists


def test_no_loader_path_is_baked_in(host: Host, expected: Facts, config: Facts) -> None:
    """The right libcuda depends on the host, which is known only when a container starts."""
    assert not [line for line in config["Env"] if line.startswith("LD_LIBRARY_PATH=")]
    configured = host.check_output("cat /etc/ld.so.conf /etc/ld.so.conf.d/*")
    assert "compat" not in configured
    assert "libcuda.so" not in host.check_output("/sbin/ldconfig -p")


def test_libraries_are_whole(host: Host, folder: str, expected: Facts) -> None:
    names = host.file(folder).listdir()
    version = host.check_output(f"readlink {folder}/libcuda.so.1").removeprefix("libcuda.so.")
    package = expected["labels"]["io.github.torch-images.compat"]
    assert re.match(rf"{re.escape(version)}(?:-|$)", package)
    assert f"libcuda.so.{version}" in names
    assert f"libnvidia-ptxjitcompiler.so.{version}" in names
    assert host.check_output(f"find {folder} -xtype l") == ""


def test_note_is_the_librarys_own(host: Host, folder: str, config: Facts) -> None:
    code = (
        "import json, facts; from pathlib import Path; "
        f"note = facts.find_library(Path('{folder}')).note; "
        "print(json.dumps(dict(driver=note.branches, device=note.brands)) if note else 'none')"
    )
    runtime = "cd /usr/local/lib/torch-images && /usr/bin/python3 -B -c"
    found = host.check_output(f'{runtime} "{code}"')
    label = config["Labels"][NOTE]
    assert (json.loads(label) if label != "none" else label) == (
        json.loads(found) if found != "none" else found
    )


def test_label_says_none_without_them(expected: Facts, config: Facts) -> None:
    labels = {name: config["Labels"][name] for name in ("io.github.torch-images.compat", NOTE)}
    assert (set(labels.values()) == {"none"}) == (not expected["compat"])


def test_start_knows_the_image(host: Host, expected: Facts) -> None:
    told = json.loads(host.file("/usr/local/lib/torch-images/image.json").content_string)
    assert told["cuda"] == expected["cuda"]


def test_start_has_bytecode(host: Host) -> None:
    """Other users cannot write the folder, so each of their starts would compile again."""
    cached = host.check_output("ls /usr/local/lib/torch-images/__pycache__").split()
    modules = host.check_output("cd /usr/local/lib/torch-images && ls *.py").split()
    assert sorted(name.partition(".")[0] for name in cached) == sorted(
        name.removesuffix(".py") for name in modules
    )
