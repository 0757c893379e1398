"""CUDA's toolkit as links: scripts/image/devel/install-toolkit on a stand-in for NVIDIA's wheels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WHEELS = (
    *("cu13/bin/nvcc", "cu13/bin/crt/link.stub", "cu13/nvvm/bin/cicc", "cu13/include/cuda.h"),
    *("cu13/include/cccl/cub/cub.cuh", "cu13/lib/libcudart.so.13", "cu13/lib/libcudart_static.a"),
    *("cu13/lib/libnvrtc-builtins.so.13.0", "cu13/lib/cmake/cub/cub-config.cmake"),
    *("cudnn/include/cudnn.h", "cudnn/lib/libcudnn.so.9", "cudnn/__init__.py"),
    *("nccl/include/nccl.h", "nccl/include/cuda.h", "nccl/lib/libnccl.so.2"),
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for path in WHEELS:
        file = tmp_path / "site" / "nvidia" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    return tmp_path / "site"


def install(root: Path, site: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    script = root / "scripts" / "image" / "devel" / "install-toolkit"
    command = [sys.executable, str(script), str(site), str(folder), "13.0"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_is_an_ordinary_cuda_home(root: Path, site: Path, tmp_path: Path) -> None:
    home = tmp_path / "cuda"
    done = install(root, site, home)
    assert done.returncode == 0, done.stderr
    assert home.readlink() == Path("cuda-13.0")
    assert (home / "bin" / "nvcc").read_text() == "cu13/bin/nvcc"
    assert not (home / "bin").is_symlink()  # or nvcc would look beside the wheel's own folder
    assert (home / "nvvm" / "bin" / "cicc").exists()
    assert (home / "include" / "cudnn.h").exists()
    assert (home / "include" / "cccl" / "cub" / "cub.cuh").exists()
    assert (home / "targets" / "x86_64-linux" / "lib" / "libnccl.so").exists()
    assert {path.name for path in (home / "lib64").iterdir()} == {
        *("cmake", "libcudart.so", "libcudart.so.13", "libcudart_static.a"),
        *("libcudnn.so", "libcudnn.so.9", "libnccl.so", "libnccl.so.2"),
        *("libnvrtc-builtins.so", "libnvrtc-builtins.so.13.0"),
    }


def test_the_toolkits_own_files_come_first(root: Path, site: Path, tmp_path: Path) -> None:
    install(root, site, tmp_path / "cuda")
    assert (tmp_path / "cuda" / "include" / "cuda.h").read_text() == "cu13/include/cuda.h"


def test_without_a_compiler_it_stops(root: Path, site: Path, tmp_path: Path) -> None:
    (site / "nvidia/cu13/bin/nvcc").unlink()
    done = install(root, site, tmp_path / "cuda")
    assert done.returncode == 1
    assert done.stderr == f"install-toolkit: {site} has no nvcc\n"
    assert not (tmp_path / "cuda").exists()
