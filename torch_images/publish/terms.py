"""What NVIDIA's licences let others distribute, by the text that a package carries. Data.

A wheel's RECORD has the SHA-256 of the licence that the wheel carries, so a package is held to its
own text and not to one that its name suggests. docs/licenses.md explains each entry, and what none
of them decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from posixpath import basename

# "Certain variations of these files that have version number ... information embedded in the file
# name": libcublas.so.13 and libcuda.so.580.95.05 are libcublas.so and libcuda.so.
_VERSION = re.compile(r"(?<=\.so)(?:\.[0-9]+)+$")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a licence lists as distributable.

    `name`: what people call it.
    `source`: where its text can be read.
    `texts`: SHA-256 of the files with its text, as RECORD writes them.
    `files`: what it lists. A name stands for files of that name, with a version or without; a path
        for what ends in it; a glob for whatever matches.
    """

    name: str
    source: str
    texts: tuple[str, ...]
    files: tuple[str, ...]

    def lists(self, path: str) -> bool:
        """Whether it lists a file."""
        plain = _VERSION.sub("", path)
        return any(
            plain.endswith(f"/{word}") if "/" in word else fnmatchcase(basename(plain), word)
            for word in self.files
        )


# Attachment A, in the order of the document, without the files of Windows, macOS and Android. The
# text that wheels carry (July 2018) is older and lists less; see docs/licenses.md.
CUDA = Terms(
    name="CUDA Toolkit EULA, Attachment A, of 26 January 2026",
    source="https://docs.nvidia.com/cuda/eula/index.html#attachment-a",
    texts=("rW9YU_ugyg0VnQ9Y1JrkmDDC-Mk_epJki5zpCttMbM0",),
    files=(
        *("libcudart.so", "libcudart_static.a", "libcudadevrt.a"),
        *("libcufft.so", "libcufft_static.a", "libcufftw.so", "libcufftw_static.a"),
        *("libcublas.so", "libcublasLt.so", "libcublas_static.a", "libcublasLt_static.a"),
        "libnvblas.so",
        *("libcusparse.so", "libcusparse_static.a"),
        *("libcusolver.so", "libcusolver_static.a"),
        *("libcurand.so", "libcurand_static.a"),
        *(
            f"libnpp{part}{end}"
            for part in ("c", "ial", "icc", "icom", "idei", "if", "ig", "im", "ist", "isu", "itc")
            for end in (".so", "_static.a")
        ),
        *("libnpps.so", "libnpps_static.a"),
        *("libnvjpeg.so", "libnvjpeg_static.a"),
        "libculibos.a",
        *("nvrtc.h", "libnvrtc.so", "libnvrtc-builtins.so"),
        *("libnvrtc_static.a", "libnvrtc-builtins_static.a"),
        "libnvvm.so",
        *("libnvJitLink.so", "libnvJitLink_static.a"),
        "libdevice.10.bc",
        "cuda_occupancy.h",
        *(
            f"cuda_{kind}.{end}"
            for kind in ("fp16", "bf16", "fp8", "fp6", "fp4")
            for end in ("h", "hpp")
        ),
        *("crt/host_defines.h", "cuComplex.h"),
        *("cuda_awbarrier_helpers.h", "cuda_awbarrier_primitives.h", "cuda_awbarrier.h"),
        *("cuda_pipeline_helpers.h", "cuda_pipeline_primitives.h", "cuda_pipeline.h"),
        *("cuda_runtime_api.h", "cuda.h"),
        *("cuda/std/tuple", "cuda/std/type_traits", "cuda/std/utility"),
        *("device_types.h", "vector_functions.h", "vector_types.h"),
        *("libcuobjclient.so", "libcuobjserver.so", "cuobjclient.h", "cuobjrdma.h"),
        *("cuobjrdmaparam.h", "cuobjserver.h", "cuobjtelem.h"),
        "libcupti.so",
        *("libnvToolsExt.so", "libnvtx3interop.so"),
        *("libcuda.so", "libnvidia-ptxjitcompiler.so", "libnvptxcompiler_static.a"),
        *("cufile.h", "libcufile.so", "libcufile_rdma.so"),
        *("libcufile_static.a", "libcufile_rdma_static.a"),
    ),
)
TERMS = (
    CUDA,
    Terms(
        name="cuDNN supplement, of 28 January 2020",
        source="LICENSE of the wheel nvidia-cudnn-cu13, section 2 of the supplement",
        texts=("Sc95vbNXNLUv5iAwE7O9dZ-B6ZjNMqosZcUduaiMYdI",),
        files=("*.so", "*.h"),
    ),
    Terms(
        name="cuSPARSELt supplement, of 12 October 2020",
        source="nvidia/cusparselt/LICENSE.txt of the wheel, section 2 of the supplement",
        texts=("6NFYiFpoG5Xsem_AbdjUpSmJ83TLE4DIpMj7J_09XV4",),
        files=("*.so", "*.h", "LICENSE.txt"),
    ),
    Terms(
        name="CUTLASS DSL licence, section 1.1 d",
        source="LICENSE of the wheel nvidia-cutlass-dsl",
        texts=("ntOgNE1r-fCEIPJo2Kpw9-OTDSSO3CzxqBB6VgtINDM",),
        # "Python files in source format"; not its compiled libraries.
        files=("*.py", "*.pyi"),
    ),
    Terms(
        name="NVIDIA Software License of CUDA Python",
        source="LICENSE of the wheel cuda-bindings 12.9, sections 1 and 2",
        texts=("Jakdbt-2T7eAoBPcHEAMIkmqaZjIyLlN_6yV2Z5dvww",),
        files=("*",),
    ),
    Terms(
        name="NCCL's licence (BSD-3-Clause)",
        source="License.txt of the wheel nvidia-nccl-cu13",
        texts=("DwF0prTgszrCY3W_cpUzB1sy9MUaW2gCo9dC19zcmnY",),
        files=("*",),
    ),
    Terms(
        name="NVTX's licence (Apache-2.0 WITH LLVM-exception)",
        source="License.txt of the wheel nvidia-nvtx",
        texts=("nkXoVr7czun2clQILKEYUdlU3i_tdEjEvtGa2aq5mpE",),
        files=("*",),
    ),
)
# CCCL (Thrust, CUB, libcu++), open source that NVIDIA's wheels carry beside their own licence: its
# files have their own notices, which come before the EULA (its section 1.1.6).
CCCL = ("nvidia/*/include/cccl/*", "nvidia/*/include/nv/*", "nvidia/*/cccl/*")
# Files of NVIDIA's inside wheels of others, whose own licence says nothing about them. `*.libs` is
# where auditwheel puts the libraries that it copies into a wheel.
BUNDLED = (
    "triton/backends/nvidia/bin/*",
    "triton/backends/nvidia/include/*",
    "triton/backends/nvidia/lib/cupti*/*",
    "triton/backends/nvidia/lib/libdevice*",
    "numba/cuda/cuda_fp16.h*",
    *(
        f"*.libs/lib{name}*"
        for name in ("cublas", "cuda", "cudnn", "cufft", "curand", "cusolver", "cusparse")
    ),
    *("*.libs/libnccl*", "*.libs/libnv*", "*.libs/libnpp*"),
)
