"""NVIDIA's programs and headers for Triton's wheel."""

from __future__ import annotations

from pathlib import Path

import nvidia
import pytest


def program(path: Path, release: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"Cuda compilation tools, release {release}, V{release}.88"
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)
    return str(path)


def test_the_toolkit_comes_before_the_published_wheel(tmp_path: Path) -> None:
    ours = program(tmp_path / "cuda" / "cuobjdump", "13.0")
    published = program(tmp_path / "published" / "cuobjdump", "12.8")
    absent = str(tmp_path / "cuda" / "nvdisasm")
    other = program(tmp_path / "published" / "nvdisasm", "12.8")
    files = tmp_path / "files"
    sources = {"bin/cuobjdump": [ours, published], "bin/nvdisasm": [absent, other]}
    assert list(nvidia.add_programs(files, sources)) == []
    programs = [files / path for path in sources]
    assert list(nvidia.other_releases([*programs, files / "absent"], "13.0")) == [
        "nvdisasm is of CUDA 12.8, the wheel is for 13.0"
    ]
    assert list(nvidia.other_releases(programs[:1], "13.0")) == []


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """Headers of a toolkit, and of a published wheel in `like`."""
    texts = {
        "cuda.h": '#include <stdlib.h>\n#  include "cuda_new.h"\n',
        "cuda_new.h": "#define CUDA_VERSION 13000\n#include <cuda/std/type_traits>\n",
        "crt/host_config.h": '#include "host_new.h"\n#include "../crt/other.h"\n',
        "crt/host_new.h": "#include <crt/host_config.h>\n",
        "crt/other.h": "",
        "cuda/std/type_traits": "",
        "cublas.h": "",
    }
    for name, text in texts.items():
        (tmp_path / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "include" / name).write_text(text)
    for name in ("cuda.h", "crt/host_config.h", "cuda_gone.h"):
        (tmp_path / "like" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "like" / name).write_text("#define CUDA_VERSION 12080\n")
    return tmp_path


def test_headers_are_those_of_the_toolkit(toolkit: Path) -> None:
    """With what is new in them; not one that no header of Triton's needs, and none of 12.8."""
    target = toolkit / "target"
    assert list(nvidia.add_headers(target, toolkit / "include", toolkit / "like")) == []
    headers = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert headers == {"cuda.h", "cuda_new.h", "crt/host_config.h", "crt/host_new.h"}
    assert "12080" not in "".join(path.read_text() for path in target.rglob("*.h"))
