"""What a build step is told to compile: a recipe per wheel, for scripts/image/source. Pure."""

from __future__ import annotations

from typing import Any

from torch_images.config.matrix import ImageSpec
from torch_images.config.types import Source
from torch_images.locks.image_lock import ImageLock

CUDA_HOME = "/usr/local/cuda"  # of the build, whatever the variant has
LAUNCHER = "/run/source/compile"
WORK = "/src"


def recipes(spec: ImageSpec, lock: ImageLock) -> dict[str, dict[str, Any]]:
    """The recipes of an image by the name of the wheel; none for published wheels."""
    if not lock.sources:
        return {}
    made = {"torch": _torch, "triton": _triton}
    return {tree.name: made[tree.name](spec, lock) for tree in lock.sources.trees}


def flags(source: Source, features: tuple[str, ...]) -> dict[str, str]:
    """The options of torch's build that switch features on and off."""
    on = [f for f in source.features if f.name in features]
    return {
        **{f.option: "1" for f in on if f.option},
        **{f.option: "0" for f in source.without if f.option},
    }


def _common() -> dict[str, str]:
    launchers = {f"CMAKE_{lang}_COMPILER_LAUNCHER": LAUNCHER for lang in ("C", "CXX", "CUDA")}
    return {
        **launchers,
        "CMAKE_GENERATOR": "Ninja",
        "CUDA_HOME": CUDA_HOME,
        "CUDACXX": f"{CUDA_HOME}/bin/nvcc",
    }


def _torch(spec: ImageSpec, lock: ImageLock) -> dict[str, Any]:
    assert lock.sources
    version = lock.compiled["torch"]
    switches = flags(spec.source, spec.features)
    told = dict(spec.source.torch_options)
    return {
        "version": version,
        "commit": lock.sources.tree("torch").commit,
        "cuda": spec.cuda.version,
        "cuda_home": CUDA_HOME,
        "arches": ";".join(spec.arches),
        "features": list(spec.features),
        "options": sorted({*switches, *told}),
        "environment": {
            **_common(),
            **switches,
            **told,
            "TORCH_CUDA_ARCH_LIST": ";".join(spec.arches),
            **({"TORCH_NVCC_FLAGS": spec.cuda.nvcc_flags} if spec.cuda.nvcc_flags else {}),
            "PYTORCH_BUILD_VERSION": version,
            "PYTORCH_BUILD_NUMBER": "1",  # asked for with a version; not shown before 2
            "USE_CCACHE": "0",  # it would take the launchers' place
            # Where MKL's wheels are.
            "CMAKE_PREFIX_PATH": "/opt/venv",
            "CMAKE_INCLUDE_PATH": "/opt/venv/include",
            "CMAKE_LIBRARY_PATH": "/opt/venv/lib",
            "NCCL_ROOT": CUDA_HOME,
            "CUDNN_LIB_DIR": f"{CUDA_HOME}/lib64",
            "CUDNN_INCLUDE_DIR": f"{CUDA_HOME}/include",
        },
        "archives": {},
        "files": {},
        "keeps_commit": True,
        "searches": True,
    }


def _triton(spec: ImageSpec, lock: ImageLock) -> dict[str, Any]:
    assert lock.sources
    tree = lock.sources.tree("triton")
    told = dict(spec.source.triton_options)
    backend = "triton/backends/nvidia"
    published = f"/opt/venv/lib/python{spec.base.python}/site-packages/{backend}"
    ptxas = f"{CUDA_HOME}/bin/ptxas"
    archives = {a.name: a.filename for a in lock.sources.archives}
    llvm, json = f"{WORK}/llvm", f"{WORK}/json"
    return {
        "version": lock.compiled["triton"],
        "commit": tree.commit,
        "cuda": spec.cuda.version,
        "cuda_home": CUDA_HOME,
        "arches": ";".join(spec.arches),
        "features": [],
        "options": sorted(told),
        "environment": {
            **_common(),
            **told,
            "TRITON_OFFLINE_BUILD": "1",
            "TRITON_BUILD_WITH_CCACHE": "0",
            "TRITON_WHEEL_VERSION_SUFFIX": f"+git{tree.commit[:7]}",
            "LLVM_SYSPATH": llvm,
            "LLVM_INCLUDE_DIRS": f"{llvm}/include",
            "LLVM_LIBRARY_DIR": f"{llvm}/lib",
            "JSON_SYSPATH": json,
            "TRITON_PTXAS_PATH": ptxas,
            "TRITON_PTXAS_BLACKWELL_PATH": ptxas,
            "TRITON_CUOBJDUMP_PATH": f"{published}/bin/cuobjdump",
            "TRITON_NVDISASM_PATH": f"{published}/bin/nvdisasm",
            "TRITON_CUDACRT_PATH": CUDA_HOME,
            "TRITON_CUDART_PATH": CUDA_HOME,
            "TRITON_CUPTI_INCLUDE_PATH": f"{CUDA_HOME}/include",
            "TRITON_CUPTI_LIB_PATH": f"{CUDA_HOME}/lib64",
            "TRITON_CUPTI_LIB_BLACKWELL_PATH": f"{CUDA_HOME}/lib64",
        },
        "archives": archives,
        # An offline build leaves NVIDIA's tools out. ptxas is that of the image's CUDA, for every
        # architecture; the others are those of the published wheel, whose hash is locked.
        "files": {
            f"{backend}/bin/ptxas": ptxas,
            f"{backend}/bin/ptxas-blackwell": ptxas,
            f"{backend}/bin/cuobjdump": f"{published}/bin/cuobjdump",
            f"{backend}/bin/nvdisasm": f"{published}/bin/nvdisasm",
            f"{backend}/include": f"{published}/include",
        },
        "keeps_commit": False,  # a suffix says it
        "searches": False,
    }
