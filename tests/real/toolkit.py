"""Debian's packages of CUDA 12.4 -> archives in the layout of NVIDIA's, and the list of them.

NVIDIA's own archives cannot be reached everywhere, and no wheel has nvcc 12.4. Debian's packages
have the same programs, with headers that suit the glibc of Debian 13.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = "/developer.download.nvidia.com/compute/cuda/redist"
RELEASE, NVCC = "12.4.1", "12.4.131"
# What nvcc reads beside itself. Debian's has no paths, because its files lie below /usr.
_PROFILE = """\
TOP              = $(_HERE_)/..
CICC_PATH        = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
LD_LIBRARY_PATH += $(TOP)/lib64:
PATH            += $(CICC_PATH):$(_HERE_):
INCLUDES        +=  "-isystem" "$(TOP)/include" $(_SPACE_)
LIBRARIES        =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"
CUDAFE_FLAGS    +=
PTXAS_FLAGS     +=
"""
_LIB = "usr/lib/x86_64-linux-gnu"
_TOOLS = "usr/lib/nvidia-cuda-toolkit"
# For each archive: the package, a path in it (a folder stands for all below), and its new path.
_PARTS = {
    "cuda_nvcc": (
        *(
            ("nvidia-cuda-toolkit", f"usr/bin/{name}", f"bin/{name}")
            for name in ("__nvcc_device_query", "bin2c", "cudafe++", "fatbinary", "nvlink", "ptxas")
        ),
        ("nvidia-cuda-toolkit", f"{_TOOLS}/bin/nvcc", "bin/nvcc"),
        ("nvidia-cuda-toolkit", f"{_TOOLS}/bin/crt", "bin/crt"),
        ("nvidia-cuda-toolkit", f"{_TOOLS}/bin/cicc", "nvvm/bin/cicc"),
        ("nvidia-cuda-toolkit", f"{_TOOLS}/libdevice", "nvvm/libdevice"),
        ("libnvvm4", _LIB, "nvvm/lib64"),
    ),
    "cuda_cuobjdump": (("nvidia-cuda-toolkit", "usr/bin/cuobjdump", "bin/cuobjdump"),),
    "cuda_nvdisasm": (("nvidia-cuda-toolkit", "usr/bin/nvdisasm", "bin/nvdisasm"),),
    "cuda_cudart": (
        ("nvidia-cuda-dev", "usr/include", "include"),
        ("nvidia-cuda-dev", f"{_LIB}/libcudart_static.a", "lib/libcudart_static.a"),
        ("nvidia-cuda-dev", f"{_LIB}/libcudadevrt.a", "lib/libcudadevrt.a"),
        ("nvidia-cuda-dev", f"{_LIB}/libculibos.a", "lib/libculibos.a"),
    ),
    "cuda_nvml_dev": (("libnvidia-ml-dev", "usr/include", "include"),),
    "cuda_cccl": tuple(
        (name, "usr/include", "include") for name in ("libcu++-dev", "libcub-dev", "libthrust-dev")
    ),
    # Not NVIDIA's archives: headers that PyTorch has as submodules, and Debian as packages that
    # only its own CUDA goes with.
    "cudnn_frontend": (("libcudnn-frontend-dev", "usr/include", "include"),),
    "cutlass": (("libcutlass-dev", "usr/include", "include"),),
}


def make(files: Mapping[str, Path], folder: Path) -> dict[str, Path]:
    """The archives and NVIDIA's list of them, by their paths at the server.

    They are made in `folder` unless they are there. Equal packages give equal archives.
    """
    folder.mkdir(parents=True, exist_ok=True)
    listed, served = {}, {}
    debs = {name.partition("_")[0]: path for name, path in files.items() if name.endswith(".deb")}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for name, parts in _PARTS.items():
            path = f"{name}/linux-x86_64/{name}-linux-x86_64-{NVCC}-archive.tar.xz"
            archive = folder / path.rpartition("/")[2]
            if not archive.exists():
                unpacked = Path(scratch, name)
                for package, source, target in parts:
                    _take(_unpacked(debs[package], Path(scratch)), source, unpacked / target)
                if name == "cuda_nvcc":
                    (unpacked / "bin" / "nvcc.profile").write_text(_PROFILE)
                _pack(unpacked, archive, Path(scratch, "archive"))
            data = archive.read_bytes()
            file = {
                "relative_path": path,
                "sha256": hashlib.sha256(data).hexdigest(),
                "size": str(len(data)),
            }
            listed[name] = {"version": NVCC, "linux-x86_64": file}
            served[f"{ROOT}/{path}"] = archive
    redistrib = folder / f"redistrib_{RELEASE}.json"
    redistrib.write_text(json.dumps(listed, indent=1) + "\n")
    return {**served, f"{ROOT}/{redistrib.name}": redistrib}


def _unpacked(deb: Path, scratch: Path) -> Path:
    """The folder with the files of a package that some archive needs."""
    folder = scratch / f"{deb.stem}.unpacked"
    if not folder.exists():
        folder.mkdir()
        wanted = sorted({f"./{source}" for parts in _PARTS.values() for _, source, _ in parts})
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE
        ) as unpacking:
            # A package has few of them; tar says which it lacks, and ends with 2.
            subprocess.run(
                ["tar", "--extract", "--directory", folder, *wanted],
                stdin=unpacking.stdout,
                stderr=subprocess.DEVNULL,
                check=False,
            )
    return folder


def _take(unpacked: Path, source: str, target: Path) -> None:
    """Copy a file, or all files below a folder, keeping links that stay within it."""
    origin = unpacked / source
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "--archive", "--no-target-directory", origin, target], check=True)


def _pack(folder: Path, archive: Path, scratch: Path) -> None:
    """Pack a folder with fixed order, times, owners and modes."""
    data = io.BytesIO()
    top = archive.name.removesuffix(".tar.xz")
    with tarfile.open(fileobj=data, mode="w:xz", preset=0, format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                continue
            member = tar.gettarinfo(path, arcname=f"{top}/{path.relative_to(folder)}")
            member.uid = member.gid = member.mtime = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            if member.isreg():
                with path.open("rb") as stream:
                    tar.addfile(member, stream)
            else:
                tar.addfile(member)
    scratch.write_bytes(data.getvalue())
    scratch.rename(archive)
