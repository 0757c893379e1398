"""What a build step is told to compile: a recipe per wheel, for scripts/image/source. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch_images.config.image import ImageSpec
from torch_images.config.types import Removal, Source
from torch_images.locks.image_lock import ImageLock

CUDA_HOME = "/usr/local/cuda"  # of the build, whatever the variant has
LAUNCHER = "/run/source/compile"
WORK = "/src"


def recipes(
    spec: ImageSpec, lock: ImageLock, removals: Iterable[Removal] = ()
) -> dict[str, dict[str, Any]]:
    """The recipes of an image by the name of the wheel; none for published wheels.

    `removals` are those of images.yaml.
    """
    if not lock.sources:
        return {}
    make = {"torch": _torch, "triton": _triton}
    made = {tree.name: make[tree.name](spec, lock) for tree in lock.sources.trees}
    left = [
        r for r in removals if r.applies(spec.cuda.version, spec.platform, narrowed=spec.narrowed)
    ]
    for name, recipe in made.items():
        recipe["removals"] = {
            "files": [glob for r in left if name in r.wheels for glob in r.files],
            "symbols": [glob for r in left if name in r.wheels for glob in r.symbols],
        }
    return made


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
    """Where NVIDIA's programs are looked for: in the toolkit, then in the published Triton.

    nvcc and ptxas are in every toolkit. cuobjdump and nvdisasm are only where `sources.*.wheels` or
    the archives of a CUDA version name them: the package index has none before 13.2.
    """
    backend = "triton/backends/nvidia"
    site = f"/opt/venv/lib/python{spec.base.python}/site-packages"
    return f"{CUDA_HOME}/bin", f"{site}/{backend}/bin"


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
        "needs": {
            f.name: f.needs for f in spec.source.features if f.needs and f.name in spec.features
        },
        "options": sorted({*switches, *told}),
        "environment": {
            **_launchers("C", "CXX", "CUDA"),
            "CMAKE_GENERATOR": "Ninja",
            "CUDA_HOME": CUDA_HOME,
            "CUDACXX": f"{CUDA_HOME}/bin/nvcc",
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
        "programs": {},
        "headers": [],
        "tools": list(_programs(spec)),
        "keeps_commit": True,
        "searches": True,
    }


def _triton(spec: ImageSpec, lock: ImageLock) -> dict[str, Any]:
    assert lock.sources
    tree = lock.sources.tree("triton")
    told = dict(spec.source.triton_options)
    backend = "triton/backends/nvidia"
    toolkit, published = _programs(spec)
    archives = {a.name: a.filename for a in lock.sources.archives}
    return {
        "version": lock.compiled["triton"],
        "commit": tree.commit,
        "cuda": spec.cuda.version,
        "cuda_home": CUDA_HOME,
        "arches": ";".join(spec.arches),
        "features": [],
        "needs": {},
        "options": sorted(told),
        # setup.py or CMake itself reads each of these: see tests/fixtures/triton-reads.json. Places
        # of NVIDIA's tools are not among them: an offline build leaves the tools out.
        # scikit-build-core, for newer trees of PyTorch, wraps the command build_ext of every
        # setup.py in this environment. The wrapper acts only in a tree whose pyproject.toml has
        # [tool.scikit-build], or whose setup() has cmake_source_dir. Triton has neither.
        "environment": {
            **_launchers("C", "CXX"),
            **told,
            "TRITON_OFFLINE_BUILD": "1",
            "TRITON_BUILD_WITH_CCACHE": "0",
            "TRITON_WHEEL_VERSION_SUFFIX": f"+git{tree.commit[:7]}",
            "LLVM_SYSPATH": f"{WORK}/llvm",
            "JSON_SYSPATH": f"{WORK}/json",
        },
        "archives": archives,
        # Triton looks for both names of ptxas. The published wheel has two releases of it; here the
        # one of the image's CUDA serves every architecture.
        "programs": {
            f"{backend}/bin/ptxas": [f"{toolkit}/ptxas"],
            f"{backend}/bin/ptxas-blackwell": [f"{toolkit}/ptxas"],
            f"{backend}/bin/cuobjdump": [f"{toolkit}/cuobjdump", f"{published}/cuobjdump"],
            f"{backend}/bin/nvdisasm": [f"{toolkit}/nvdisasm", f"{published}/nvdisasm"],
        },
        # To where, from where, and a folder that has the names of the headers.
        "headers": [
            f"{backend}/include",
            f"{CUDA_HOME}/include",
            f"{published.removesuffix('/bin')}/include",
        ],
        "tools": [],
        "keeps_commit": False,  # a suffix says it
        "searches": False,
    }
