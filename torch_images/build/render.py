"""ImageSpec and lock -> build context. Pure: nothing is read but templates, nothing is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch_images.build.compile_recipe import CUDA_HOME, recipes
from torch_images.build.context_file import ContextFile, own_files
from torch_images.build.input_labels import input_labels
from torch_images.build.limits import limits
from torch_images.build.nvidia_require import COMPAT_FOLDER, require_cuda
from torch_images.build.supplies import supplies
from torch_images.build.templates import templates
from torch_images.config.image import POD, ImageSpec, short, version_text
from torch_images.config.matrix import compat_sister, matrix
from torch_images.config.own import Own
from torch_images.config.types import Config
from torch_images.layers.plan import all_plans, wheel_groups
from torch_images.locks.constraints import (
    VARIABLES,
    constraints,
    project,
    refusals,
    uv_settings,
)
from torch_images.locks.debs import DebLock
from torch_images.locks.image_lock import ImageLock
from torch_images.locks.sources import SourceLock
from torch_images.locks.wheels import WheelLock, requirements_text
from torch_images.oci.layout import BASE_RECIPE
from torch_images.platforms import AMD64, Platform
from torch_images.project import PACKAGE

# -s: reap orphans without a warning, even if it is not process 1 (--init, --pid=host). Not
# -g, which ends the workers of a DataLoader before their parent can save.
ENTRYPOINT = ("/usr/bin/tini", "-s", "--", "/usr/local/bin/torch-entrypoint")
FLASH_ATTENTION = "flash-attn-4"  # images with this wheel get scripts/image/attention
FOLDER = "/usr/share/torch-images"  # where an image keeps its locks and its SBOM
CONSTRAINTS = f"{FOLDER}/constraints.txt"
RUNTIME = "/usr/local/lib/torch-images"  # programs that run at every start
WORKSPACE = "/workspace"  # where containers start, unless a variant says otherwise
# What users set to change a start, and sudo keeps beside the image's own variables.
_SWITCHES = ("ATTENTION", "CXX20", "GEMM", "PROFILE", "TF32")
OPTIONS = ("CUDA_COMPAT", *(f"TORCH_IMAGE_{name}" for name in _SWITCHES))

# What programs of images import of this package, by their folder.
SHARED = {
    "runtime": ("__init__.py", *(f"inside/{n}.py" for n in ("__init__", "decision", "elfnote"))),
    "source": (
        *("__init__.py", "arch.py", "jobs.py", "inside/__init__.py"),
        *("inside/features.json", "inside/features.py", "inside/times.py"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Context:
    """Everything that BuildKit needs for an image, besides its named contexts (see supplies.py).

    `beneath`: what decides other bytes than those of its steps: its version, as far as no hash is
        in it, the recipe of the base, and key and title of each layer of wheels.
    `labels`: those that follow from the inputs, as pairs.
    """

    id: str
    files: tuple[ContextFile, ...]
    beneath: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 in hexadecimal over everything that determines the image.

        Comments of the Dockerfile do not count: they change no byte of an image.
        """
        digest = hashlib.sha256(json.dumps([self.beneath, self.labels]).encode())
        for file in self.files:
            data = instructions(file.data) if file.path == "Dockerfile" else file.data
            digest.update(f"{file.path}\0{file.executable}\0{len(data)}\0".encode() + data)
        return digest.hexdigest()

    @property
    def dockerfile(self) -> str:
        """The rendered Dockerfile."""
        return next(f.data.decode() for f in self.files if f.path == "Dockerfile")


def render(
    config: Config, spec: ImageSpec, lock: ImageLock, root: Path, *, shared_cache: bool = False
) -> Context:
    """The build context of an image; `root` is the project's folder, with docker/ and scripts/.

    Compiling gets the network only with `shared_cache`: a compile cache shared with other builders.
    """
    compiled = recipes(config, spec, lock)
    facts = dockerfile_facts(config, spec, lock)
    facts["source"] = _source(spec, lock, shared_cache=shared_cache)
    dockerfile = templates(root / "docker").get_template("Dockerfile.j2").render(facts)
    others = [("variant", lock.extra_wheels), ("source", lock.tools)]
    others += [("own", lock.own_wheels), ("own-build", lock.own_build)]
    others += [(more.name, more) for more in lock.unpacked]
    files = text_files(
        {"Dockerfile": dockerfile}
        | {f"wheels/{name}.txt": requirements_text(more.wheels) for name, more in others if more}
        | {f"lock/{name}": text for name, text in lock.texts().items()}
    )
    folders = ["build", "finish", "commands", "runtime", "runtime/_torch_images"]
    folders += ["devel"] if spec.variant.cuda_home or compiled else []
    folders += ["source"] if compiled else []
    folders += ["native"] if facts["native"] else []
    folders += ["pod"] if spec.variant.command == POD else []
    folders += ["attention"] if facts["attention"] else []
    folders += ["own"] if spec.own else []
    for folder in folders:
        files += [
            ContextFile(path=f"{folder}/{path.name}", data=path.read_bytes(), executable=True)
            for path in sorted((root / "scripts" / "image" / folder).iterdir())
            if path.is_file()
        ]
    files += own_files(spec.own, package=lock.own_build is not None) if spec.own else []
    pins = constraints(config, spec, lock)
    files += text_files(
        {"runtime/image.json": _json(image_facts(config, spec, matrix(config)))}
        | {"finish/constraints.txt": pins, "finish/uv.toml": uv_settings(pins, CONSTRAINTS)}
        | {"finish/uv-project.toml": project(config, spec, lock)}
        | {"finish/sudoers": sudoers(environment(spec, lock))}
        | {f"source/{name}.json": _json(recipe) for name, recipe in compiled.items()}
    )
    for folder, names in SHARED.items():
        for name in names if folder in folders else ():
            path = f"{folder}/torch_images/{name}"
            files.append(ContextFile(path=path, data=(PACKAGE / name).read_bytes()))
    return Context(
        id=spec.id,
        files=tuple(files),
        beneath=(
            version_text(config, spec),
            BASE_RECIPE,
            *(f"{plan.key} {plan.title}" for plan in all_plans(config, spec, lock)),
        ),
        labels=tuple(input_labels(config, spec, lock).items()),
    )


def text_files(texts: Mapping[str, str]) -> list[ContextFile]:
    """Files of a context from texts by path."""
    return [ContextFile(path=path, data=text.encode()) for path, text in texts.items()]


def _json(document: object) -> str:
    return json.dumps(document, indent=1) + "\n"


def completed(context: Context, version: str) -> Context:
    """The context with the image's version, which has the hash of the context itself."""
    return replace(context, files=(*context.files, *text_files({"finish/version": f"{version}\n"})))


def dockerfile_facts(config: Config, spec: ImageSpec, lock: ImageLock) -> dict[str, Any]:
    """The variables of the templates, except those of the compile stages."""
    groups = wheel_groups(lock)
    return {
        "id": spec.id,
        "description": spec.description,
        "homepage": config.homepage,
        "repository": spec.repository,
        "folder": FOLDER,
        "supplies": supplies(lock),
        "standalone": False,
        "native": spec.platform != AMD64,
        "base": {
            "description": spec.base.description,
            "python": spec.base.python,
            "packages": _packages(lock, lock.base),
        },
        "layers": tuple(
            f"{plan.title}, {plan.size / 1e6:.0f} MB, sha256:{plan.key}"
            for plan in all_plans(config, spec, lock)
        ),
        "compiled": tuple(name for name, _, _ in groups if name in lock.compiled),
        "toolkit": {
            "archives": bool(lock.toolkit),
            "contents": f"nvcc and the libraries of CUDA {spec.cuda.version} as one folder, "
            + (_archives(lock, lock.toolkit) if lock.toolkit else "from the wheels above."),
        },
        "compat": {
            "contents": f"NVIDIA's driver libraries {lock.compat_version}, for hosts whose own are "
            f"older, sha256:{lock.compat.debs[0].sha256}.",
            "folder": f"{COMPAT_FOLDER}/{spec.cuda.version}",
        }
        if lock.compat
        else None,
        "variant": _variant(spec, lock),
        "own": _own(spec.own, lock) if spec.own else None,
        "site": f"/opt/venv/lib/python{spec.base.python}/site-packages",
        "cuda": spec.cuda.version,
        "environment": tuple(environment(spec, lock).items()),
        "pod": spec.variant.command == POD,
        "attention": any(wheel.name == FLASH_ATTENTION for wheel in lock.all_wheels),
        "ports": tuple(str(port) for port in spec.variant.ports),
        "workdir": spec.variant.folder or WORKSPACE,
        "entrypoint": ENTRYPOINT,
        "command": spec.command,
    }


def _source(spec: ImageSpec, lock: ImageLock, *, shared_cache: bool) -> dict[str, Any] | None:
    """The variables of the compile stages; None for published wheels."""
    if not lock.sources:
        return None
    assert lock.tools
    return {
        "packages": _packages(lock, lock.tool_debs),
        "tools": _wheels(lock, "source", "What compiles", lock.tools),
        "below": "libraries" if lock.trees else "environment",
        "cuda_home": CUDA_HOME,
        "headers": spec.source.headers,
        "trees": tuple(
            {
                "name": tree.name,
                "contents": f"{lock.compiled[tree.name]}, from {tree.repository} at {tree.commit}.",
                "file": "",
            }
            for tree in lock.trees
        )
        + tuple(
            {
                "name": sdist.name,
                "contents": f"{sdist.version}, from {sdist.filename}, sha256:{sdist.sha256}.",
                "file": sdist.filename,
            }
            for sdist in lock.sdists
        ),
        "network": "default" if shared_cache else "none",
    }


def _packages(lock: ImageLock, debs: DebLock | None) -> str:
    return f"{len(debs.debs)} packages, {_text_of(lock, debs.name)}" if debs else ""


def _archives(lock: ImageLock, archives: SourceLock) -> str:
    return f"{len(archives.archives)} archives, {_text_of(lock, archives.name)}"


def _wheels(lock: ImageLock, name: str, title: str, wheels: WheelLock) -> dict[str, str]:
    """The variables of a step that installs wheels; `name` is its list's."""
    size = sum(wheel.size for wheel in wheels.wheels) / 1e6
    count = f"{len(wheels.wheels)} wheels, {size:.0f} MB to download"
    return {"name": name, "contents": f"{title}: {count}, {_text_of(lock, wheels.name)}"}


def _text_of(lock: ImageLock, name: str) -> str:
    """The path of a lock in the context, with its SHA-256."""
    file = f"{name}.json"
    return f"lock/{file} sha256:{hashlib.sha256(lock.texts()[file].encode()).hexdigest()}."


def _variant(spec: ImageSpec, lock: ImageLock) -> dict[str, Any] | None:
    """The variables of a variant's additions; None for a variant that adds nothing."""
    if not spec.variant.adds:
        return None
    debs, wheels = lock.extra_debs, lock.extra_wheels
    return {
        "description": spec.variant.description,
        "packages": _packages(lock, debs) if debs and debs.debs else "",
        "wheels": _wheels(lock, "variant", "What the variant adds", wheels)
        if wheels and wheels.wheels
        else None,
        "compiled": [extra.package for extra in spec.variant.sources],
        "cuda_home": spec.variant.cuda_home,
        "unpacked": [
            {
                "name": own.name,
                "description": extra.description,
                "contents": ", ".join(wheel.line for wheel in own.wheels),
                "folder": extra.unpack,
                "links": [f"{link}={target}" for link, target in extra.links],
            }
            for extra, own in zip(spec.variant.unpacked, lock.unpacked, strict=True)
        ],
    }


def _own(own: Own, lock: ImageLock) -> dict[str, Any]:
    debs, wheels, build = lock.own_debs, lock.own_wheels, lock.own_build
    return {
        "packages": _packages(lock, debs) if debs and debs.debs else "",
        "wheels": _wheels(lock, "own", "What the project requires", wheels)
        if wheels and wheels.wheels
        else None,
        "build": _wheels(lock, "own-build", "What builds it", build) if build else None,
        "roots": sorted({f"/{target.split('/')[1]}" for _, target in own.files}),
    }


def image_facts(config: Config, spec: ImageSpec, listed: Iterable[ImageSpec]) -> dict[str, Any]:
    """Facts that an image's own programs read, see scripts/image/runtime. They are its own alone.

    `drivers` is the first driver branch by compute capability, of what its CUDA version can target.
    `compat` is the tag of the image with NVIDIA's compat library, one of `listed`, and the older
    driver branches that the library is for.
    """
    cuda = spec.cuda
    sister = None if spec.compat or spec.own else compat_sister(spec, listed)
    facts = {
        "cuda": cuda.version,
        "driver": cuda.driver,
        "floor": cuda.floor,
        "repository": cuda.repository,
        "page": f"{config.homepage}/blob/main/docs/pick.md",
        "drivers": {
            arch.name: arch.first_driver
            for arch in config.architectures
            if arch.capability in cuda.targets
        },
    }
    if sister:
        facts["compat"] = {"tag": short(config, sister), "branches": cuda.compat}
    lacking = limits(spec)
    return {**facts, **({"limits": lacking} if lacking else {})}


def environment(spec: ImageSpec, lock: ImageLock) -> dict[str, str]:
    """The environment that an image sets."""
    variant = spec.variant
    folders = ["/opt/venv/bin"]
    folders += [f"{variant.cuda_home}/bin"] if variant.cuda_home else []
    folders += ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    return {
        # For bash scripts that the entrypoint did not start. Only bash reads the variable.
        "BASH_ENV": f"{RUNTIME}/shell.sh",
        **({"CUDA_HOME": variant.cuda_home} if variant.cuda_home else {}),
        **_inductor(spec.platform),
        **{name: value for extra in variant.extras for name, value in extra.environment},
        **dict(spec.own.environment if spec.own else ()),
        "PATH": ":".join(folders),
        "VIRTUAL_ENV": "/opt/venv",
        **dict.fromkeys(VARIABLES, CONSTRAINTS),
        **refusals(lock),
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_REQUIRE_CUDA": require_cuda(spec.cuda, compat=lock.compat is not None),
    }


def sudoers(environ: Mapping[str, str]) -> str:
    """Settings with which `sudo pip` is the image's pip, and keeps to its constraints.

    Not BASH_ENV: who may run one script as root would run any.
    """
    names = (*OPTIONS, *(name for name in environ if name not in ("BASH_ENV", "PATH")))
    return f'Defaults secure_path="{environ["PATH"]}"\nDefaults env_keep += "{" ".join(names)}"\n'


def _inductor(platform: Platform) -> dict[str, str]:
    """Settings of torch.compile for the image's compiler on a platform."""
    if platform == AMD64:
        # For each vector extension of the processor, Inductor tries whether the compiler and torch
        # support it: seconds before the first kernel. Here both are known to.
        return {"TORCHINDUCTOR_VEC_ISA_OK": "1"}
    # g++ 12 crashes when Inductor precompiles torch's headers for SVE.
    return {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}


def instructions(dockerfile: bytes) -> bytes:
    """A Dockerfile without comments and blank lines. Our templates have no heredocs."""
    lines = (line for line in dockerfile.splitlines() if line.strip())
    return b"\n".join(line for line in lines if not line.startswith(b"#"))


def write_context(context: Context, folder: Path) -> None:
    """Write a context into a new folder; modes are fixed.

    Times must not be fixed: BuildKit treats a file of equal size and time as unchanged, and would
    build from an older lock. No time of a context reaches a layer, see clamp-mtimes.
    """
    for file in context.files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(0o755 if file.executable else 0o644)
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
