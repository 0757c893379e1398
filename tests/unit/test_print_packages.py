"""What apt is asked for is a name: with a real apt, and a repository of a few packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "print-packages"
NAMES = ("g++", "memtest86+", "zlib1g-dev")

pytestmark = pytest.mark.skipif(not shutil.which("apt-get"), reason="apt is Debian's")


@pytest.fixture(scope="module")
def apt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which apt knows the packages of NAMES and nothing of this machine."""
    root = tmp_path_factory.mktemp("apt")
    for folder in ("repo", "lists/partial", "cache/archives/partial", "etc/parts"):
        (root / folder).mkdir(parents=True)
    (root / "repo/Packages").write_text(
        "".join(
            f"Package: {name}\nVersion: 1\nArchitecture: amd64\nMaintainer: a <a@example.org>\n"
            f"Filename: ./{name}_1_amd64.deb\nSize: 1\nSHA256: {'a' * 64}\nDescription: x\n\n"
            for name in NAMES
        )
    )
    (root / "status").touch()
    (root / "sources.list").write_text(f"deb [trusted=yes] file:{root}/repo ./\n")
    (root / "apt.conf").write_text(
        f'Dir::State "{root}"; Dir::State::lists "{root}/lists"; Dir::State::status "{root}/status";\n'
        f'Dir::Cache "{root}/cache"; Dir::Etc "{root}/etc"; Dir::Etc::parts "{root}/etc/parts"; Dir::Etc::preferencesparts "-";\n'
        f'Dir::Etc::sourcelist "{root}/sources.list"; Dir::Etc::sourceparts "-";\n'
        'APT::Architecture "amd64"; APT::Architectures { "amd64"; }; APT::Sandbox::User "";\n'
        'Acquire::Languages "none"; Debug::NoLocking "1";\n'
    )
    environ = {**os.environ, "APT_CONFIG": str(root / "apt.conf"), "LC_ALL": "C"}
    subprocess.run(["apt-get", "-qq", "update"], env=environ, check=True, capture_output=True)
    return environ


def print_packages(apt: dict[str, str], *names: str) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), *names]
    return subprocess.run(command, env=apt, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_print_packages_takes_any_name(apt: dict[str, str], name: str) -> None:
    done = print_packages(apt, name)
    assert done.returncode == 0
    assert f"{name.replace('+', '%2b')}_1_amd64.deb" in done.stdout.lower()


@pytest.mark.parametrize("name", ["zlib1g.dev", "g.+", "zlib.*", "z"])
def test_no_name_is_taken_for_a_regular_expression(apt: dict[str, str], name: str) -> None:
    done = print_packages(apt, name)
    assert done.returncode == 100
    assert "Unable to locate package" in done.stderr
    assert ".deb" not in done.stdout
