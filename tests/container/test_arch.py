"""torch and Triton have machine code for the GPU architectures that the image claims."""

from __future__ import annotations

import functools
import inspect
import os
import re
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch.utils import cpp_extension
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from torch_images.arch import Capability, coverage, targets_in_listing, unasked, widespread

LIBRARIES = ("libtorch_cuda.so", "libtorch_cuda_linalg.so")
# A library with fewer files of machine code has single kernels only: libtorch_cuda_linalg.so of
# torch 2.15.0 has 33 for 10.0.
FEW = 10
# What cuobjdump said on another machine, where this image runs in an emulator.
LISTINGS = Path(os.environ.get("TORCH_IMAGES_LISTINGS", "/nowhere"))
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

Observe = Callable[[str, object], None]


@pytest.fixture
def library(request: pytest.FixtureRequest, expected: dict[str, Any]) -> str:
    """A library of torch with machine code. That of the second one is MAGMA's."""
    name: str = request.param
    path = Path(torch.__file__).parent / "lib" / name
    optional = name == LIBRARIES[1] and "magma" not in expected["features"]
    if optional and not (path.exists() and code(name, "elf") | code(name, "ptx")):
        pytest.skip("torch was compiled without MAGMA, whose kernels this library has")
    return name


@functools.cache
def code(library: str, kind: str) -> Counter[str]:
    """How often each target occurs in a library of torch; `kind` is "elf" or "ptx"."""
    listed = LISTINGS / f"{library}.{kind}"
    if listed.exists():
        return targets_in_listing(listed.read_text())
    path = Path(torch.__file__).parent / "lib" / library
    done = subprocess.run(
        [TOOLS / "cuobjdump", f"--list-{kind}", path], capture_output=True, text=True, check=False
    )
    if "No PTX file found" in done.stderr or "does not contain device code" in done.stderr:
        return Counter()
    assert done.returncode == 0, done.stderr
    return targets_in_listing(done.stdout)


def test_arch_flags_serve(arch: str, observe: Observe) -> None:
    # torch.cuda.get_arch_list() is empty without a GPU (pytorch/pytorch#169414).
    flags = torch._C._cuda_getArchFlags().split()
    how = coverage(Capability.parse(arch), flags, [f for f in flags if f.startswith("compute_")])
    observe(f"arch {arch}", how)
    assert how is not None, f"torch was compiled for {flags}, none of which runs on {arch}"


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
def test_machine_code_serves(
    arch: str, library: str, expected: dict[str, Any], observe: Observe
) -> None:
    elf, ptx = code(library, "elf"), code(library, "ptx")
    # A target that occurs in only a few files belongs to a special kernel: other kernels lack it.
    how = coverage(Capability.parse(arch), widespread(elf), widespread(ptx, like=elf))
    observe(f"arch {arch} in {library}", how)
    if library in expected["lacks"][arch]:
        # A single kernel is all that a narrowed image has, so there it is the commonest: torch
        # 2.15.0 has one for 7.5 in libtorch_cuda_linalg.so.
        few = expected["narrowed"] and elf.total() < FEW
        assert how is None or few, f"{library} has {how} for {arch}, which its lock says it lacks"
        pytest.skip(f"torch serves {arch}, but for what it does with {library}: see torch-info")
    assert how is not None, f"{library} holds {dict(elf)} and PTX {dict(ptx)}; none serves {arch}"


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
def test_machine_code_is_exactly_what_was_asked_for(expected: dict[str, Any], library: str) -> None:
    if not expected["exact"]:
        pytest.skip("this image has published wheels, which may have other targets")
    asked = {Capability.parse(arch) for arch in expected["exact"]}
    assert not unasked(asked, code(library, "elf"))
    assert not unasked(set(), code(library, "ptx"))


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
def test_machine_code_is_what_some_gpu_loads(expected: dict[str, Any], library: str) -> None:
    if not expected["narrowed"]:
        pytest.skip("this image has all code that torch was published with")
    elf = code(library, "elf")
    asked = [Capability.parse(arch) for arch in expected["arches"]]
    loaded = {found.target for a in asked if (found := coverage(a, widespread(elf)))}
    exact = {f"sm_{a.major}{a.minor}" for a in asked}
    assert {target for target in elf if target.rstrip("af") not in loaded | exact} == set()


def test_torch_names_the_architectures_that_it_has(expected: dict[str, Any]) -> None:
    if not expected["arch_list"]:
        pytest.skip("no lock says what this torch was compiled for")
    assert torch._C._cuda_getArchFlags().split() == expected["arch_list"]


Gpu = Callable[[str], None]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Lets torch believe in one GPU of a compute capability."""

    def believe(capability: str) -> None:
        own = tuple(map(int, capability.split(".")))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: own)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: f"GPU {capability}")

    return believe


def warned() -> list[str]:
    """What torch says of its GPU when a program first uses it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda._check_capability()
        torch.cuda._check_cubins()
    return [str(each.message) for each in caught]


def test_torch_warns_of_a_gpu_without_code(gpu: Gpu, expected: dict[str, Any]) -> None:
    """Its own function, with those GPUs that the image is for, and one that it has no code for."""
    for arch in expected["arches"]:
        gpu(arch)
        assert warned() == []
    code = list(filter(None, map(Capability.of_target, torch._C._cuda_getArchFlags().split())))
    others = ("8.0", "9.0", "10.0", "12.0", "3.5")
    foreign = next(c for c in others if not any(Capability.parse(c).runs(has) for has in code))
    gpu(foreign)
    assert any(f"GPU {foreign}" in text for text in warned())


def test_extensions_are_compiled_for_the_architecture(
    gpu: Gpu, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not expected["narrowed"]:
        pytest.skip("this image is for several generations of GPUs")
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    newest = Capability.of_target(expected["arch_list"][-1])
    for arch in expected["arches"]:
        gpu(arch)
        flags = " ".join(cpp_extension._get_cuda_arch_flags())
        assert newest
        own = min(newest, Capability.parse(arch))
        assert set(re.findall(r"(?:sm|compute)_([0-9]+)", flags)) == {f"{own.major}{own.minor}"}


def test_triton_compiles_to_machine_code(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The multiply-add below is fused only where that is asked for, from Triton 3.10 on. 3.9 warns.
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    capability = Capability.parse(arch)
    target = GPUTarget("cuda", capability.major * 10 + capability.minor, 32)
    signature = {"x": "*fp32", "y": "*fp32", "a": "fp32", "n": "i32"}
    if "constexprs" in inspect.signature(ASTSource).parameters:
        signature["BLOCK"] = "constexpr"
        source = ASTSource(fn=_axpy, signature=signature, constexprs={"BLOCK": 128})
    else:  # before Triton 3.3
        source = ASTSource(fn=_axpy, signature=signature, constants={"BLOCK": 128})
    cubin = triton.compile(source, target=target).asm["cubin"]
    path = tmp_path / "axpy.cubin"
    path.write_bytes(cubin)
    done = subprocess.run(
        [TOOLS / "cuobjdump", "--dump-sass", path], capture_output=True, text=True, check=False
    )
    assert f"sm_{target.arch}" in done.stdout
    if arch == "10.3" and "Cannot decode architecture" in done.stderr:
        return  # Triton 3.6 compiles for 10.3 with a newer program than it disassembles with
    assert done.returncode == 0, done.stderr
    assert "FFMA" in done.stdout  # the multiply-add of the kernel, as an instruction of the chip


@triton.jit
def _axpy(x, y, a, n, BLOCK: triton.language.constexpr) -> None:  # type: ignore[no-untyped-def]
    i = triton.language.program_id(0) * BLOCK + triton.language.arange(0, BLOCK)
    mask = i < n
    value = a * triton.language.load(x + i, mask=mask) + triton.language.load(y + i, mask=mask)
    triton.language.store(y + i, value, mask=mask)
