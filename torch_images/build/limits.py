"""What fails on GPUs that one of torch's libraries has no machine code for, as images print it."""

from __future__ import annotations

from packaging.version import Version

from torch_images.config.image import ImageSpec

# Calls of libtorch_cuda_linalg.so into MAGMA, by the first release of torch that they apply to. The
# library's strings name the MAGMA routines linked; BatchLinearAlgebra.cpp shows when they run.
# Tried with torch 2.11.0 on an H100, after removing the library's code for 9.0: most calls ended in
# illegal memory accesses, after which the process cannot use the GPU any more. With cuSOLVER
# preferred, only `ldl_factor` failed.
_MAGMA = "libtorch_cuda_linalg.so"
_LU = "lu_factor of batches and of matrices that are not square, solve, inv and det of batches"
_CALLS = (
    ("2.15", "lu_factor with pivot=False"),
    ("2.12", _LU),
    ("0", f"{_LU}, cholesky_solve and cholesky_inverse of batches"),
)
_INSTEAD = (
    "TORCH_LINALG_PREFER_CUSOLVER=1 has cuSOLVER do it, and ldl_factor of complex Hermitian "
    "matrices, which can fail, too, is then refused"
)


def limits(spec: ImageSpec) -> dict[str, list[str]]:
    """A line for each library that lacks code, by compute capability of the image, e.g. "7.5".

    Compute capabilities that every library has code for are left out. Compiled sources have no
    limits: they are compiled for all of the image's architectures.
    """
    facts = None if spec.source.compiled else spec.release.facts
    lacking = {a.name: facts.lacking(a.capability) if facts else () for a in spec.architectures}
    return {
        arch: [_line(library, arch, spec.torch) for library in libraries]
        for arch, libraries in lacking.items()
        if libraries
    }


def lacks(spec: ImageSpec) -> tuple[str, ...]:
    """A line for each program that images of the variant have for other CUDA versions only."""
    if spec.cuda.version not in spec.variant.no_toolkit:
        return ()
    return (f"it has no nvcc: only NVIDIA's archive has the compiler of CUDA {spec.cuda.version}",)


def _line(library: str, arch: str, torch: str) -> str:
    if library != _MAGMA:
        return f"{library} has no code for {arch}: what torch does with it fails there"
    calls = next(text for since, text in _CALLS if Version(torch) >= Version(since))
    failing = f"{calls} can fail with illegal memory accesses"
    return f"{library} (MAGMA) has no code for {arch}: {failing}; {_INSTEAD}"
