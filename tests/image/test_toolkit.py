"""CUDA's toolkit, in variants that have one: every part is there, and no link is broken."""

from __future__ import annotations

from typing import Any

import pytest
from testinfra.host import Host

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def home(expected: Facts) -> str:
    """Where the image claims to have its toolkit."""
    if not expected["cuda_home"]:
        pytest.skip("the image claims to have no toolkit")
    return str(expected["cuda_home"])


def test_toolkit_is_there_only_with_the_claim(host: Host, expected: Facts) -> None:
    assert host.file("/usr/local/cuda/bin/nvcc").exists == bool(expected["cuda_home"])


def test_links_lead_somewhere(host: Host, home: str, expected: Facts) -> None:
    assert host.check_output(f"find {home}/ -xtype l") == ""
    found = host.check_output(f"find {home}/ -type f").splitlines()
    files = set(found) - {f"{home}/lib64/stubs/libcuda.so"}  # install-toolkit compiles this one
    assert bool(files) == bool(expected["toolkit"])  # files come from archives, links from wheels
    licences = {f"{home}/LICENSE.{name}" for name in expected["toolkit"]}
    assert licences <= files


@pytest.mark.parametrize("name", ["bin", "include", "lib", "lib64", "nvvm", "targets/{}/lib"])
def test_folders_are_where_builds_look(host: Host, home: str, name: str, expected: Facts) -> None:
    target = {"linux/amd64": "x86_64-linux", "linux/arm64": "sbsa-linux"}[expected["platform"]]
    assert host.file(f"{home}/{name.format(target)}").exists


@pytest.mark.parametrize(
    "header", ["cuda_runtime", "cublas_v2", "cudnn", "nccl", "nvtx3/nvToolsExt", "cusparseLt"]
)
def test_headers_are_there(host: Host, home: str, header: str) -> None:
    assert host.file(f"{home}/include/{header}.h").exists


@pytest.mark.parametrize(
    "library",
    ["cudart", "cublas", "cublasLt", "cudnn", "cufft", "cufile", "cupti", "curand", "cusolver"]
    + ["cusparse", "cusparseLt", "nccl", "nvJitLink", "nvrtc", "nvshmem_host"],
)
def test_linkers_find_libraries(host: Host, home: str, library: str) -> None:
    assert host.file(f"{home}/lib64/lib{library}.so").exists


@pytest.mark.parametrize("program", ["cmake", "git", "make", "ninja", "nvcc", "ptxas"])
def test_programs_run(host: Host, home: str, program: str) -> None:
    assert host.run(f"{program} --version").rc == 0
