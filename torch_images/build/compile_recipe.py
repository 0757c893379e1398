"""Recipes for compiling wheels, one per wheel, read by scripts/image/source. Pure."""

from __future__ import annotations

from typing import Any

from torch_images.arch import Capability
from torch_images.config.extras import Extra
from torch_images.config.image import ImageSpec
from torch_images.config.types import Config, Source
from torch_images.layers.plan import removals_of
from torch_images.locks.image_lock import ImageLock
from torch_images.locks.sources import LockedTree

CUDA_HOME = "/usr/local/cuda"  # in compile stages, whatever the variant's is
LAUNCHER = "/run/source/compile"
WORK = "/src"
# What a recipe has where its wheel needs nothing else.
_PLAIN: dict[str, Any] = {
    "features": [],
    "needs": {},
    "options": [],
    "environment": {},
    "archives": {},
    "programs": {},
    "headers": [],
    "tools": [],
    "keeps_commit": False,
    "searches": True,
}


def recipes(config: Config, spec: ImageSpec, lock: ImageLock) -> dict[str, dict[str, Any]]:
    """The recipes of an image by the name of the wheel; {} for published wheels."""
    make = {"torch": _torch, "triton": _triton}
    compiled = {
        tree.name: {
            "version": lock.compiled[tree.name],
            "commit": tree.commit,
            "cuda": spec.cuda.version,
            "cuda_home": CUDA_HOME,
            "arches": ";".join(spec.arches),
            **make[tree.name](spec, lock, tree),
        }
        for tree in lock.trees
    }
    extras = {extra.package: extra for extra in config.extras if extra.source}
    compiled |= {sdist.name: _extra(spec, extras[sdist.name]) for sdist in lock.sdists}
    applied = removals_of(config, spec)
    for name, recipe in compiled.items():
        recipe["removals"] = {
            "files": [glob for r in applied if name in r.wheels for glob in r.files],
            "symbols": [glob for r in applied if name in r.wheels for glob in r.symbols],
        }
    return compiled


def _extra(spec: ImageSpec, extra: Extra) -> dict[str, Any]:
    """The recipe of an extra, which torch's own builder of extensions compiles."""
    arches = extra.targets(spec.arches)
    codes = (Capability.parse(arch).sm.removeprefix("sm") for arch in arches)
    gencode = " ".join(f"-gencode=arch=compute_{code},code=sm_{code}" for code in codes)
    return {
        "version": extra.source.partition("==")[2],
        "commit": "",
        "cuda": spec.cuda.version,
        "cuda_home": CUDA_HOME,
        "arches": ";".join(arches),
        **_PLAIN,
        "environment": {
            **dict(extra.options),
            "CUDA_HOME": CUDA_HOME,
            "GENCODE": gencode,
            "TORCH_CUDA_ARCH_LIST": ";".join(arches),
        },
        "tools": list(_programs(spec)),
    }


def flags(source: Source, features: tuple[str, ...]) -> dict[str, str]:
    """The options of torch's build that switch features on and off."""
    on = [f for f in source.features if f.name in features]
    return {
        **{f.option: "1" for f in on if f.option},
        **{f.option: "0" for f in source.without if f.option},
    }


def _launchers(*languages: str) -> dict[str, str]:
    return {f"CMAKE_{language}_COMPILER_LAUNCHER": LAUNCHER for language in languages}


def _programs(spec: ImageSpec) -> tuple[str, str]:
    """Folders searched for NVIDIA's programs: the toolkit's, then the published Triton's.

    Every toolkit has nvcc and ptxas. It has cuobjdump and nvdisasm only if `sources.*.wheels` or
    the archives of a CUDA version list them: the package index has none before 13.2.
    """
    backend = "triton/backends/nvidia"
    site = f"/opt/venv/lib/python{spec.base.python}/site-packages"
    return f"{CUDA_HOME}/bin", f"{site}/{backend}/bin"


def _torch(spec: ImageSpec, lock: ImageLock, tree: LockedTree) -> dict[str, Any]:
    switches = flags(spec.source, spec.features)
    options = dict(spec.source.torch_options)
    return {
        **_PLAIN,
        "features": list(spec.features),
        "needs": {
            f.name: f.needs for f in spec.source.features if f.needs and f.name in spec.features
        },
        "options": sorted({*switches, *options}),
        "environment": {
            **_launchers("C", "CXX", "CUDA"),
            "CMAKE_GENERATOR": "Ninja",
            "CUDA_HOME": CUDA_HOME,
            "CUDACXX": f"{CUDA_HOME}/bin/nvcc",
            **switches,
            **options,
            "TORCH_CUDA_ARCH_LIST": ";".join(spec.arches),
            **({"TORCH_NVCC_FLAGS": spec.cuda.nvcc_flags} if spec.cuda.nvcc_flags else {}),
            "PYTORCH_BUILD_VERSION": lock.compiled[tree.name],
            "PYTORCH_BUILD_NUMBER": "1",  # required with a version; shown from 2 on
            "USE_CCACHE": "0",  # it would replace the launchers
            # The wheels of MKL are there.
            "CMAKE_PREFIX_PATH": "/opt/venv",
            "CMAKE_INCLUDE_PATH": "/opt/venv/include",
            "CMAKE_LIBRARY_PATH": "/opt/venv/lib",
            "NCCL_ROOT": CUDA_HOME,
            "CUDNN_LIB_DIR": f"{CUDA_HOME}/lib64",
            "CUDNN_INCLUDE_DIR": f"{CUDA_HOME}/include",
        },
        "tools": list(_programs(spec)),
        "keeps_commit": True,
    }


def _triton(spec: ImageSpec, lock: ImageLock, tree: LockedTree) -> dict[str, Any]:
    options = dict(spec.source.triton_options)
    backend = "triton/backends/nvidia"
    toolkit, published = _programs(spec)
    archives = {a.name: a.filename for a in lock.sources.archives} if lock.sources else {}
    return {
        **_PLAIN,
        "options": sorted(options),
        # setup.py or CMake itself reads each of these: see tests/fixtures/triton-reads.json. Paths
        # of NVIDIA's tools are not set: an offline build leaves the tools out.
        # scikit-build-core, for newer trees of PyTorch, wraps the command build_ext of every
        # setup.py in this environment. The wrapper acts only in a tree whose pyproject.toml has
        # [tool.scikit-build], or whose setup() has cmake_source_dir. Triton has neither.
        "environment": {
            **_launchers("C", "CXX"),
            **options,
            "TRITON_OFFLINE_BUILD": "1",
            "TRITON_BUILD_WITH_CCACHE": "0",
            "TRITON_WHEEL_VERSION_SUFFIX": f"+git{tree.commit[:7]}",
            "LLVM_SYSPATH": f"{WORK}/llvm",
            "JSON_SYSPATH": f"{WORK}/json",
        },
        "archives": archives,
        # Triton looks for both names of ptxas. The published wheel has two releases of it; here the
        # ptxas of the image's CUDA version serves every architecture.
        "programs": {
            f"{backend}/bin/ptxas": [f"{toolkit}/ptxas"],
            f"{backend}/bin/ptxas-blackwell": [f"{toolkit}/ptxas"],
            f"{backend}/bin/cuobjdump": [f"{toolkit}/cuobjdump", f"{published}/cuobjdump"],
            f"{backend}/bin/nvdisasm": [f"{toolkit}/nvdisasm", f"{published}/nvdisasm"],
        },
        # Target, source, and a folder that has the names of the headers.
        "headers": [
            f"{backend}/include",
            f"{CUDA_HOME}/include",
            f"{published.removesuffix('/bin')}/include",
        ],
        "searches": False,
    }
