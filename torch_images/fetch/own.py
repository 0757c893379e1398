"""A user's project and the locks of an image -> the locks of what the project adds to it.

The packages that torch needs as they are (torch, Triton, the CUDA libraries, and what is compiled
for this torch) keep their versions. uv prefers the image's versions of all others too, and takes
another one only where the project requires it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from torch_images.config.extras import Extra
from torch_images.config.image import ImageSpec
from torch_images.config.lock_requests import (
    WheelRequest,
    own_debs_input,
    variant_inputs,
    wheel_input,
)
from torch_images.config.own import SHARED, Own
from torch_images.config.types import Config
from torch_images.errors import CommandError, LockError
from torch_images.fetch.apt import Resolver
from torch_images.fetch.resolve import markers, resolve, select
from torch_images.fetch.tools import uv_command
from torch_images.locks.constraints import companions, installed, rivals
from torch_images.locks.debs import DebLock
from torch_images.locks.image_lock import ImageLock
from torch_images.locks.requirements import (
    PYLOCK,
    UV_LOCK,
    Asked,
    build_requirements,
    is_package,
    of_project,
    of_text,
    read_toml,
)
from torch_images.locks.wheels import LockedWheel, WheelLock, uv_platform

_SOURCE = re.compile(r"Wheels are required for `([^`]+)`")
_VIA = re.compile(r"^(\S+)==(\S+)\n((?:    #.*\n?)*)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class _Image:
    """What a project's packages have to fit."""

    config: Config
    spec: ImageSpec
    lock: ImageLock

    @property
    def fixed(self) -> dict[str, str]:
        """Version by name of the packages that must stay, or may only come in this version."""
        return companions(self.config, self.spec) | rivals(self.lock) | installed(self.lock)

    @property
    def environment(self) -> dict[str, str]:
        """The values of markers."""
        python = next(
            (deb.version for deb in self.lock.base.debs if deb.name == "python3"),
            f"{self.spec.base.python}.0",
        )
        return markers(self.spec.base.python, self.spec.platform, python.partition("-")[0])


def compiled_extras(
    config: Config, spec: ImageSpec, lock: ImageLock, resolver: Resolver
) -> tuple[Extra, ...]:
    """The extras, compiled from source, that the requirements of a project name.

    `lock` is that of the image without them. Raises LockError for one that the image cannot have.
    """
    assert spec.own
    asked = _asked(spec.own, _Image(config=config, spec=spec, lock=lock), resolver)
    names = {canonicalize_name(one.name) for one in asked.requirements} - lock.compiled.keys()
    extras = tuple(extra for extra in config.extras if extra.package in names)
    for extra in extras:
        published = None if spec.source.compiled else spec.release
        reasons = [extra.refusal(spec.cuda.version, published, spec.arches)]
        reasons += [extra.conflict(other) for other in spec.variant.extras]
        if reason := next(filter(None, reasons), ""):
            raise LockError(
                f"{asked.where} asks for {extra.package}: {reason}",
                'change the table, such as arch = ["9.0"], or leave it out',
            )
    return extras


def own_locks(
    config: Config, spec: ImageSpec, lock: ImageLock, resolver: Resolver, *, keep: ImageLock | None
) -> ImageLock:
    """The lock of an image with what its project adds, from `lock` without that.

    Versions of `keep`, an earlier lock of the project, stay where they fit. Raises LockError with
    the requirement that does not fit, NetworkError, and as `Resolver.resolve` does.
    """
    assert spec.own
    image, own = _Image(config=config, spec=spec, lock=lock), spec.own
    asked = _asked(own, image, resolver)
    return replace(
        lock,
        own_wheels=_wheels(image, asked, resolver, keep) if asked.requirements else None,
        own_debs=_debs(image, resolver) if own.packages else None,
        own_build=_build(own, image, resolver) if asked.itself else None,
    )


def _asked(own: Own, image: _Image, resolver: Resolver) -> Asked:
    """What the project requires, from whichever file its table names."""
    name, environment = Path(own.requirements).name, image.environment
    if not own.requirements:
        return Asked(where="", hashes={})
    if (own.extras or own.groups) and name not in (SHARED, UV_LOCK, PYLOCK):
        raise LockError(
            f"{own.requirements} has neither extras nor groups", "take them out of the table"
        )
    if name == SHARED:
        return of_project(own, environment)
    if name == UV_LOCK:
        lines = _pinned(_exported(own, resolver), own, image)
        asked = of_text(lines, own.requirements, environment, own.root)
        return replace(asked, itself=is_package(read_toml(own.root, SHARED)))
    if name == PYLOCK:
        document, groups = read_toml(own.root, own.requirements), own.groups or None
        lines = _pinned(document, own, image, extras=own.extras, groups=groups)
        return of_text(lines, own.requirements, environment, own.root)
    return of_text(f"-r {own.requirements}", "", environment, own.root, where=own.requirements)


def _exported(own: Own, resolver: Resolver) -> dict[str, Any]:
    """A uv.lock as a pylock.toml. Raises LockError."""
    command = uv_command("export", "--quiet", "--frozen", "--no-emit-project", "--no-header")
    command += ["--no-default-groups", "--format", "pylock.toml"]
    command += [word for name in own.extras for word in ("--extra", name)]
    command += [word for name in own.groups for word in ("--group", name)]
    env = resolver.network.for_uv() | {"UV_PYTHON_DOWNLOADS": "never"}
    try:
        folder = (own.root / own.requirements).parent
        return tomllib.loads(resolver.run.run(command, env=env, cwd=folder).output)
    except CommandError as error:
        raise LockError(
            f"uv cannot export {own.requirements}: {error.output[-300:]}", "run `uv lock`"
        ) from None


def _pinned(document: dict[str, Any], own: Own, image: _Image, **choice: Any) -> str:
    """The requirements of a pylock.toml (PEP 751) in pip's format, with hashes."""
    spec = image.spec
    try:
        chosen = select(document, spec.base.python, spec.platform, **choice)
    except LockError as error:
        raise LockError(
            f"{own.requirements}: {error.message}",
            "lock releases of the package index that have one, choose another base, or install it "
            "on the image: docs/own.md",
        ) from None
    lines = []
    for package, _ in chosen:
        hashes = [wheel.hashes.get("sha256", "") for wheel in package.wheels or ()]
        words = [f"--hash=sha256:{digest}" for digest in hashes if digest]
        lines.append(" ".join([f"{package.name}=={package.version}", *words]))
    return "\n".join(lines)


def _wheels(image: _Image, asked: Asked, resolver: Resolver, keep: ImageLock | None) -> WheelLock:
    """The wheels that the project adds to those of the image."""
    spec, fixed = image.spec, image.fixed
    # torch first: the CUDA libraries follow from it.
    ordered = sorted(asked.requirements, key=lambda one: one.name != "torch")
    fitting = [_fitting(one, asked, image) for one in ordered]
    reduced = [one for one in fitting if canonicalize_name(one.name) not in image.lock.compiled]
    limits = [_fitting(one, asked, image) for one in asked.constraints]
    plain, more = wheel_input(image.config, spec), variant_inputs(image.config, spec)[0]
    request = {*(more or plain).request, *map(str, reduced)}
    item = replace(plain, name="own-wheels", request=tuple(sorted(request)), beside=())
    has = {wheel.name: wheel.version for wheel in image.lock.all_wheels}
    old = keep.own_wheels.versions() if keep and keep.own_wheels else {}
    try:
        lock = resolve(
            item,
            network=resolver.network,
            run=resolver.run,
            constraints=[*(f"{n}=={v}" for n, v in fixed.items()), *map(str, limits)],
            prefer=has | old,
        )
    except LockError as error:
        raise _explain(asked, image, resolver) or _unsolved(error, asked, image) from None
    added = tuple(w for w in lock.wheels if has.get(w.name) != w.version)
    for wheel in lock.wheels:
        if wheel.name not in fixed:  # PyTorch's own index has other files of torch
            _require_hash(wheel, asked)
    return replace(lock, wheels=added)


def _unsolved(error: LockError, asked: Asked, image: _Image) -> LockError:
    """The error for requirements that no set of wheels meets."""
    if package := _SOURCE.search(error.message):
        python = image.spec.base.python
        return LockError(
            f"{asked.where}: {package[1]} has no wheel for Python {python} on "
            f"{image.spec.platform}, only sources",
            "choose a release that has one, or build it on the image: docs/derive.md",
        )
    return LockError(f"{asked.where}: {error.message}", error.hint)


def _fitting(one: Requirement, asked: Asked, image: _Image) -> Requirement:
    """A requirement, without the version that the image has anyway.

    Raises LockError if the image has another one.
    """
    name = canonicalize_name(one.name)
    version = image.fixed.get(name)
    if version is None:
        return one
    local = f"{version}+{image.spec.cuda.short}"  # as PyTorch's own index calls its wheels
    if "+not.beside." in version:
        other = version.partition("+not.beside.")[2].replace(".", "-")
        raise LockError(
            f"{asked.where} asks for {name}, which would replace files of {other} in the image",
            "leave it out",
        )
    if not any(one.specifier.contains(v, prereleases=True) for v in (version, local)):
        raise LockError(
            f"{asked.where} asks for {name}{one.specifier}, and the image has {name} {version}",
            _way_out(name, image, one.specifier),
        )
    extras = f"[{','.join(sorted(one.extras))}]" if one.extras else ""
    return Requirement(f"{name}{extras}")


def _explain(asked: Asked, image: _Image, resolver: Resolver) -> LockError | None:
    """Why requirements do not fit an image: which of its packages they need in another version."""
    command = uv_command("pip", "compile", "--quiet", "--no-header", "--python", sys.executable)
    command += ["--python-version", image.spec.base.python, "--only-binary", ":all:", "-"]
    command += ["--python-platform", uv_platform(image.spec.platform)]
    try:
        text = resolver.run.run(
            command, env=resolver.network.for_uv(), stdin="\n".join(map(str, asked.requirements))
        ).output
    except CommandError:
        return None
    for name, version, via in sorted(_VIA.findall(text), key=lambda found: found[0] != "torch"):
        has = image.fixed.get(name, version)
        if Version(has).public != Version(version).public:
            by = ", ".join(re.findall(r"(?:via|#)\s+(?!via)(\S+)", via)) or asked.where
            return LockError(
                f"{asked.where} leads to {name} {version}, by {by}, and the image has {has}",
                _way_out(name, image, SpecifierSet(f"=={version}")),
            )
    return None


def _way_out(name: str, image: _Image, needs: SpecifierSet) -> str:
    """What to change where a package of the image has another version than required."""
    if name == "torch":
        for cuda in sorted(image.config.cudas, key=lambda c: c.version != image.spec.cuda.version):
            if torch := next(needs.filter(reversed(cuda.torch)), ""):
                other = f'cuda = "{cuda.version}" and ' if cuda != image.spec.cuda else ""
                return f'set {other}torch = "{torch}" in the table, or loosen the requirement'
    return "loosen the requirement, or choose another torch in the table"


def _require_hash(wheel: LockedWheel, asked: Asked) -> None:
    allowed = asked.hashes.get(wheel.name)
    if allowed and wheel.sha256 not in allowed:
        raise LockError(
            f"{asked.where} does not allow the file that the index has, {wheel.filename}, "
            f"sha256:{wheel.sha256}",
            "lock it again, or find out who changed the file",
        )


def _debs(image: _Image, resolver: Resolver) -> DebLock:
    """The Debian packages that the project adds to those of the image."""
    try:
        lock = resolver.resolve(own_debs_input(image.spec))
    except LockError as error:
        raise LockError(error.message, "correct `packages` of the table") from None
    has = {deb.name for deb in image.lock.all_debs}
    return replace(lock, debs=tuple(deb for deb in lock.debs if deb.name not in has))


def _build(own: Own, image: _Image, resolver: Resolver) -> WheelLock:
    """The wheels that build the project's own package, besides those of the image."""
    item = WheelRequest(
        name="own-build",
        request=tuple(sorted("".join(line.split()) for line in build_requirements(own))),
        platform=image.spec.platform,
        python=image.spec.base.python,
        index=image.spec.cuda.index(image.spec.release.version),
    )
    has = {wheel.name: wheel.version for wheel in image.lock.all_wheels}
    constraints = [f"{name}=={version}" for name, version in image.fixed.items()]
    lock = resolve(
        item, network=resolver.network, run=resolver.run, constraints=constraints, prefer=has
    )
    return replace(lock, wheels=tuple(w for w in lock.wheels if has.get(w.name) != w.version))
