"""Libraries of torch's that a wheel of another name replaced or removed."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest
from libraries import replaced

LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
AGAIN = "pip install --force-reinstall --no-deps nvidia-nccl-cu13==2.30.7"


def install(site: Path, name: str, version: str, *requires: str, **files: str) -> None:
    """A wheel, as pip installs it: it writes over the files of others."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    info.joinpath("METADATA").write_text(f"Name: {name}\nVersion: {version}\n{needs}")
    rows = [f"{info.name}/RECORD,,"]
    for path, text in files.items():
        place = site / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode()
        rows.append(f"{path},sha256={digest.rstrip('=')},{len(text)}")
    info.joinpath("RECORD").write_text("\n".join(rows) + "\nmalformed.so\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "opt/venv/lib/python3.13/site-packages"
    install(site, "torch", "2.14.1", "nvidia_nccl-cu13==2.30.7; platform_system == 'Linux'")
    install(site, "nvidia-nccl-cu13", "2.30.7", **{LIBRARY: "thirteen"})
    return site


def test_replaced_ignores_other_libraries(site: Path, tmp_path: Path) -> None:
    install(site, "mine", "1", **{"mine/libmine.so": "x"})
    site.joinpath("mine/libmine.so").write_text("changed")  # torch does not need it
    assert replaced(tmp_path) == []


@pytest.mark.parametrize("text", ["of twelve", "twelve12"], ids=["size", "content"])
def test_replaced_names_a_rival(site: Path, tmp_path: Path, text: str) -> None:
    install(site, "nvidia-nccl-cu12", "2.26.2", **{LIBRARY: text})
    [line] = replaced(tmp_path)
    assert line == (
        "nvidia-nccl-cu12 2.26.2 replaced libnccl.so.2 of nvidia-nccl-cu13 2.30.7, which torch needs: "
        f"pip uninstall --yes nvidia-nccl-cu12 && {AGAIN}"
    )
    site.joinpath(LIBRARY).write_text("thirteen")  # the image's was installed once more
    assert replaced(tmp_path) == []


def test_a_rival_that_was_uninstalled(site: Path, tmp_path: Path) -> None:
    site.joinpath(LIBRARY).unlink()
    [line] = replaced(tmp_path)
    assert line.endswith(f"which torch needs, was removed or changed: {AGAIN}")


def test_a_torch_of_the_users_for_the_rivals_cuda(tmp_path: Path) -> None:
    site = tmp_path / "opt/venv/lib/python3.13/site-packages"
    install(site, "nvidia-nccl-cu13", "2.30.7", **{LIBRARY: "thirteen"})
    install(site, "nvidia-nccl-cu12", "2.26.2", **{LIBRARY: "twelve"})
    install(site, "torch", "2.10.0", "nvidia-nccl-cu12==2.26.2")
    assert replaced(tmp_path) == []
    assert replaced(tmp_path / "no") == []
