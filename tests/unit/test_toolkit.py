"""CUDA's toolkit as links: scripts/image/devel/install-toolkit on a stand-in for NVIDIA's wheels."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import time
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


def install(
    root: Path, site: Path, folder: Path, *archives: Path
) -> subprocess.CompletedProcess[str]:
    script = root / "scripts" / "image" / "devel" / "install-toolkit"
    command = [sys.executable, str(script), str(site), str(folder), "13.0", *map(str, archives)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_install_toolkit_gives_a_cuda_home(root: Path, site: Path, tmp_path: Path) -> None:
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


def test_install_toolkit_prefers_its_own_files(root: Path, site: Path, tmp_path: Path) -> None:
    install(root, site, tmp_path / "cuda")
    assert (tmp_path / "cuda" / "include" / "cuda.h").read_text() == "cu13/include/cuda.h"


def test_install_toolkit_unpacks_archives(root: Path, site: Path, tmp_path: Path) -> None:
    """As for CUDA 12.8, whose compiler is in no wheel; their files come first, and are new."""
    (site / "nvidia/cu13/bin/nvcc").unlink()
    folder = tmp_path / "archives"
    folder.mkdir()
    with tarfile.open(folder / "cuda_nvcc-linux-x86_64-12.8.93-archive.tar.xz", "w:xz") as tar:
        for name in ("LICENSE", "bin/nvcc", "include/cuda.h", "lib/libcudadevrt.a"):
            member = tarfile.TarInfo(f"cuda_nvcc-linux-x86_64-12.8.93-archive/{name}")
            member.mode, member.mtime, member.size = 0o755, 1_000_000_000, 7
            tar.addfile(member, io.BytesIO(b"archive"))
    done = install(root, site, tmp_path / "cuda", folder)
    assert done.returncode == 0, done.stderr
    home = tmp_path / "cuda"
    assert (home / "bin" / "nvcc").read_text() == "archive"
    assert (home / "include" / "cuda.h").read_text() == "archive"
    assert (home / "include" / "cudnn.h").is_symlink()
    assert {p.name for p in home.iterdir() if p.is_file()} == {"LICENSE.cuda_nvcc"}
    assert {"libcudadevrt.a", "libcudart.so", "libnccl.so"} <= {
        path.name for path in (home / "lib64").iterdir()
    }
    assert min(p.lstat().st_mtime for p in home.rglob("*")) > time.time() - 3600
