"""ImageSpec and lock -> build context. Pure: nothing is read but templates, nothing is written.

A value that comes from images.yaml cannot leave its place in a Dockerfile: what is not plain text
must pass a quoting filter, or rendering fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from torch_images.build.compile_recipe import CUDA_HOME, recipes
from torch_images.build.nvidia_require import COMPAT_FOLDER, require_cuda
from torch_images.config.matrix import ImageSpec
from torch_images.config.types import Config, Variant
from torch_images.errors import ConfigError
from torch_images.host import outputs
from torch_images.layers.constraints import VARIABLES, constraints
from torch_images.layers.plan import LayerPlan, plan_layers
from torch_images.locks.image_lock import ImageLock
from torch_images.locks.wheels import LockedWheel

LABEL_PREFIX = "io.github.torch-images"
# Given by the bake, because only the package itself tells: the compat library's ELF note.
NOTE_LABEL = f"{LABEL_PREFIX}.compat.note"
PRUNED_LABEL = f"{LABEL_PREFIX}.pruned"
ENTRYPOINT = ("/usr/bin/tini", "-g", "--", "/usr/local/bin/torch-entrypoint")
POD = "pod-start"  # the command of variants that get what scripts/image/pod has
FOLDER = "/usr/share/torch-images"  # where an image keeps its locks and its bill of materials
CONSTRAINTS = f"{FOLDER}/constraints.txt"
RUNTIME = "/usr/local/lib/torch-images"  # and what runs at every start
LICENSES = "BSD-3-Clause AND MIT AND LicenseRef-NVIDIA-Proprietary"

_PLAIN = re.compile(r"[A-Za-z0-9._/:@+=,-]+(?: [A-Za-z0-9._/:@+=,-]+)*| \\\n +|")
_GROUPS = (
    ("cuda", "CUDA libraries"),
    ("torch", "PyTorch"),
    ("triton", "Triton"),
    ("python", "Python packages"),
)


@dataclass(frozen=True, kw_only=True)
class ContextFile:
    """One file of a build context, at a path relative to it."""

    path: str
    data: bytes
    executable: bool = False


@dataclass(frozen=True, kw_only=True)
class Context:
    """All that BuildKit needs for an image, beside its named contexts (see build/bake.py)."""

    id: str
    files: tuple[ContextFile, ...]

    @property
    def dockerfile(self) -> str:
        """The rendered Dockerfile."""
        return next(f.data.decode() for f in self.files if f.path == "Dockerfile")


def render(
    config: Config, spec: ImageSpec, lock: ImageLock, root: Path, *, shared_cache: bool = False
) -> Context:
    """The build context of an image; `root` is the project's folder, with docker/ and scripts/.

    Compiling needs the network only for a compile cache that is `shared_cache`, with others.
    """
    groups = wheel_groups(lock)
    layers = tuple(p for plans in layer_plans(config, spec, lock).values() for p in plans)
    made = recipes(spec, lock)
    dockerfile = (
        _environment(root / "docker")
        .get_template("Dockerfile.j2")
        .render(
            id=spec.id,
            repository=spec.repository,
            version=version(config, spec, lock),
            folder=FOLDER,
            base={
                "name": spec.base.name,
                "description": spec.base.description,
                "image": lock.base.image,
                "python": spec.base.python,
            },
            groups=[name for name, _, wheels in groups if wheels],
            layers=[{"title": p.title, "megabytes": round(p.size / 1e6)} for p in layers],
            compiled=tuple(name for name, _, _ in groups if name in made),
            source={
                "description": spec.source.description,
                "tools": _group_facts("source", "What compiles", lock.tools.wheels),
                "cuda_home": CUDA_HOME,
                "compiled": tuple(sorted(made)),
                "network": "default" if shared_cache else "none",
            }
            if lock.tools
            else None,
            toolkit=bool(lock.toolkit),
            compat={
                "version": lock.compat_version,
                "folder": f"{COMPAT_FOLDER}/{spec.cuda.version}",
            }
            if lock.compat
            else None,
            variant=_variant(spec, lock),
            site=f"/opt/venv/lib/python{spec.base.python}/site-packages",
            cuda=spec.cuda.version,
            environment=tuple(environment(spec.variant).items()),
            pod=spec.variant.command == POD,
            ports=tuple(str(port) for port in spec.variant.ports),
            workdir=spec.variant.folder,
            entrypoint=ENTRYPOINT,
            command=(spec.variant.command,),
            labels=tuple(sorted(labels(config, spec, lock).items())),
        )
    )
    files = [ContextFile(path="Dockerfile", data=dockerfile.encode())]
    # No step reads it: it lets the layers count among what identifies an image.
    text = json.dumps([{"title": p.title, **p.facts} for p in layers], indent=1) + "\n"
    files.append(ContextFile(path="layers.json", data=text.encode()))
    others = [("variant", lock.extra_wheels), ("source", lock.tools)]
    others += [(more.name, more) for more in lock.unpacked]
    for name, more in others:
        if more:
            text = "".join(f"{wheel.line}\n" for wheel in more.wheels)
            files.append(ContextFile(path=f"wheels/{name}.txt", data=text.encode()))
    for name, text in lock.texts().items():
        files.append(ContextFile(path=f"lock/{name}", data=text.encode()))
    folders = ["bench", "build", "finish", "commands", "runtime"]
    folders += ["devel"] if spec.variant.cuda_home or made else []
    folders += ["source"] if made else []
    folders += ["pod"] if spec.variant.command == POD else []
    for folder in folders:
        files += [
            ContextFile(path=f"{folder}/{path.name}", data=path.read_bytes(), executable=True)
            for path in sorted((root / "scripts" / "image" / folder).iterdir())
            if path.is_file()
        ]
    facts = image_facts(config, spec.cuda.version)
    if spec.prune and not lock.sources:
        facts["pruned"] = [arch.name for arch in spec.architectures]
    text = json.dumps(facts, indent=1) + "\n"
    files.append(ContextFile(path="runtime/image.json", data=text.encode()))
    held = constraints(config, spec, lock)
    files.append(ContextFile(path="finish/constraints.txt", data=held.encode()))
    for name, recipe in made.items():
        text = json.dumps(recipe, indent=1) + "\n"
        files.append(ContextFile(path=f"source/{name}.json", data=text.encode()))
    for module in ("__init__", "arch", "jobs") if made else ():  # the build step's part of it
        data = (root / "torch_images" / f"{module}.py").read_bytes()
        files.append(ContextFile(path=f"source/torch_images/{module}.py", data=data))
    return Context(id=spec.id, files=tuple(files))


def with_recipe(config: Config, spec: ImageSpec, lock: ImageLock, root: Path) -> ImageLock:
    """A lock that also knows what the build does with it: all that BuildKit is handed."""
    digest = hashlib.sha256()
    for file in render(config, spec, replace(lock, recipe=""), root).files:
        digest.update(f"{file.path}\0{file.executable}\0{len(file.data)}\0".encode() + file.data)
    return replace(lock, recipe=digest.hexdigest())


def wheel_groups(lock: ImageLock) -> tuple[tuple[str, str, tuple[LockedWheel, ...]], ...]:
    """The wheels as layers: name, title and wheels of each, the ones that change least first.

    Those that the build compiles are groups without wheels.
    """
    found: dict[str, list[LockedWheel]] = {name: [] for name, _ in _GROUPS}
    for wheel in sorted(lock.wheels.wheels):
        found[_group(wheel)].append(wheel)
    kept = [(name, title) for name, title in _GROUPS if found[name] or name in lock.compiled]
    return tuple((name, title, tuple(found[name])) for name, title in kept)


def layer_plans(
    config: Config, spec: ImageSpec, lock: ImageLock
) -> dict[str, tuple[LayerPlan, ...]]:
    """The layers of an image's wheels by group, the ones that change least first."""
    removals = [r for r in config.removals if spec.prune or not r.prune]
    arches = [a.capability.major * 10 + a.capability.minor for a in spec.architectures]
    return {
        name: plan_layers(title, wheels, spec.base.python, removals, arches)
        for name, title, wheels in wheel_groups(lock)
        if wheels
    }


def _group_facts(name: str, title: str, wheels: Sequence[LockedWheel]) -> dict[str, Any]:
    """What the template of a layer of wheels reads."""
    return {"name": name, "title": title, "megabytes": round(sum(w.size for w in wheels) / 1e6)}


def _variant(spec: ImageSpec, lock: ImageLock) -> dict[str, Any] | None:
    """What a variant adds, as its template reads it; None for one that adds nothing."""
    if not spec.variant.adds:
        return None
    wheels = lock.extra_wheels.wheels if lock.extra_wheels else ()
    return {
        "description": spec.variant.description,
        "packages": bool(lock.extra_debs and lock.extra_debs.debs),
        "wheels": _group_facts("variant", spec.variant.name, wheels) if wheels else None,
        "cuda_home": spec.variant.cuda_home,
        "unpacked": [
            {
                "name": wheels.name,
                "description": extra.description,
                "folder": extra.unpack,
                "links": [f"{link}={target}" for link, target in extra.links],
            }
            for extra, wheels in zip(spec.variant.unpacked, lock.unpacked, strict=True)
        ],
    }


def image_facts(config: Config, cuda: str) -> dict[str, Any]:
    """What the start of a container needs to know of its image: see scripts/image/runtime."""
    releases = [
        {"cuda": c.version, "driver": c.driver, "floor": c.floor, "repository": c.repository}
        for c in config.cudas
    ]
    return {"cuda": cuda, "releases": releases}


def whole_environment(spec: ImageSpec, note: str) -> dict[str, str]:
    """All of an image's environment; `note` is that of its compat library, "" for none."""
    return {**environment(spec.variant), "NVIDIA_REQUIRE_CUDA": require_cuda(spec.cuda, note)}


def environment(variant: Variant) -> dict[str, str]:
    """The environment that every image of a variant sets."""
    folders = ["/opt/venv/bin"]
    folders += [f"{variant.cuda_home}/bin"] if variant.cuda_home else []
    folders += ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    return {
        # Shells that the entrypoint did not start: bash for scripts, sh and bash on a terminal.
        "BASH_ENV": f"{RUNTIME}/shell.sh",
        "ENV": f"{RUNTIME}/shell.sh",
        "PROMPT_COMMAND": f". {RUNTIME}/shell.sh",
        **({"CUDA_HOME": variant.cuda_home} if variant.cuda_home else {}),
        "PATH": ":".join(folders),
        "VIRTUAL_ENV": "/opt/venv",
        **dict.fromkeys(VARIABLES, CONSTRAINTS),
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }


def version(config: Config, spec: ImageSpec, lock: ImageLock) -> str:
    """The version of an image, also its immutable tag: "2.11.0-sm120-runtime-<inputs>".

    It ends in "-nocompat" for an image without NVIDIA's compat libraries, and in "-unlocked" where
    the build resolved a part of the lock for itself.
    """
    parts = [spec.torch, spec.arch_name]
    if spec.source.name != config.defaults.source:
        parts.append(spec.source.name)
    parts.append(spec.variant.name)
    if spec.base.name != config.defaults.base:
        parts.append(spec.base.name)
    parts.append(lock.identity[:12])
    parts += [] if lock.compat else ["nocompat"]
    parts += ["unlocked"] if lock.unlocked else []
    return "-".join(parts)


def labels(config: Config, spec: ImageSpec, lock: ImageLock) -> dict[str, str]:
    """The labels of an image that follow from the matrix and the lock.

    Keys of the standard: https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md
    """
    arches = ", ".join(
        f"{a.name} ({a.family}: {', '.join(a.examples)})" for a in spec.architectures
    )
    standard = {
        "title": spec.repository,
        "description": f"PyTorch {spec.torch} for CUDA {spec.cuda.version} on {arches}",
        "version": version(config, spec, lock),
        "source": config.homepage,
        "url": config.homepage,
        "licenses": LICENSES,
        "base.name": spec.base.image(spec.cuda.version) or spec.base.name,
    }
    ours = {
        "id": spec.id,
        "cuda": spec.cuda.version,
        "torch": spec.torch,
        "triton": lock.triton,
        "python": spec.base.python,
        "arches": " ".join(spec.arches),
        **(
            {f"{tree.name}.commit": tree.commit for tree in lock.sources.trees}
            if lock.sources
            else {}
        ),
        "source": spec.source.name,
        "variant": spec.variant.name,
        "compat": lock.compat_version,
        "lock": f"sha256:{lock.digest}",
        "inputs": f"sha256:{lock.identity}",
        **({"unlocked": "yes"} if lock.unlocked else {}),
        **({"pruned": "yes"} if spec.prune else {}),
    }
    return {
        **{f"org.opencontainers.image.{key}": value for key, value in standard.items()},
        **{f"{LABEL_PREFIX}.{key}": value for key, value in ours.items()},
    }


def write_context(context: Context, folder: Path, *, keep: bool = False) -> None:
    """Write a context, replacing what is there; modes are fixed.

    With `keep`, the folder is a user's: nothing of theirs is replaced, see host/outputs.py, which
    raises UsageError.
    Times must not be fixed: BuildKit takes a file of equal size and time for the one it has
    already, and would build from an older lock. No time of a context reaches a layer, see
    clamp-mtimes.
    """
    guard = outputs.saying(folder) if keep else contextlib.nullcontext()
    folder = outputs.claim(folder) if keep else folder
    with guard, outputs.replacing(folder) as made:
        for file in context.files:
            path = made / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
            path.chmod(0o755 if file.executable else 0o644)
        for path in made.rglob("*"):
            if path.is_dir():
                path.chmod(0o755)
        if keep:
            outputs.mark(made, made)


def quoted(value: str) -> str:
    """A Dockerfile word that means exactly `value`: in double quotes, nothing in it expanded."""
    if not value.isprintable():
        raise ConfigError(f"{value!r} cannot stand in a Dockerfile", "use one line of plain text")
    return _Safe('"' + re.sub(r'([\\"$])', r"\\\1", value) + '"')


def comment(value: str) -> str:
    """Text for a comment line; a line that ends in a backslash would swallow the next one."""
    if not value.isprintable():
        raise ConfigError(f"{value!r} cannot stand in a Dockerfile", "use one line of plain text")
    return _Safe(value.rstrip("\\ "))


def exec_form(words: Sequence[str]) -> str:
    """Words as the JSON list that ENTRYPOINT and CMD take, which no shell expands."""
    return _Safe(json.dumps(list(words)))


class _Safe(str):
    """Text that a filter has already made fit for its place."""

    __slots__ = ()


def _group(wheel: LockedWheel) -> str:
    if wheel.name in ("torch", "triton"):
        return wheel.name
    return "cuda" if wheel.of_cuda else "python"


def _finalize(value: Any) -> Any:
    """Let only plain text into a template where no filter has made it safe."""
    if not isinstance(value, _Safe) and not _PLAIN.fullmatch(str(value)):
        raise ConfigError(
            f"{str(value)!r} cannot stand unquoted in a Dockerfile",
            "use letters, digits and . _ / : @ + = , - only",
        )
    return value


@cache
def _environment(folder: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        autoescape=False,  # noqa: S701  a Dockerfile is not HTML; `finalize` guards it
    )
    environment.filters |= {"comment": comment, "exec_form": exec_form, "quoted": quoted}
    return environment
