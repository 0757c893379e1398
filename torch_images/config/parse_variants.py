"""The sections `variants` and `extras` of images.yaml."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from packaging.utils import canonicalize_name

from torch_images.config.extras import Extra, Variant
from torch_images.config.parse_fields import (
    NAME,
    below,
    capability,
    entry_name,
    folder,
    overlap,
    own_folder,
    packages,
    port,
    requirements,
)
from torch_images.config.release import Release
from torch_images.config.types import Config, Cuda, Source
from torch_images.config.yaml_nodes import Record, Value
from torch_images.errors import ConfigError, suggest

_FIT = re.compile("required|optional")
_IN_STEP = re.compile("minor")
_COMMAND = re.compile(r"[a-z][a-z0-9-]*")


def load_extras(value: Value, cudas: tuple[Cuda, ...]) -> tuple[Extra, ...]:
    """The groups of wheels that variants can add. Raises ConfigError."""
    extras = tuple(_extra(key, member, cudas) for key, member in value.entries())
    names = [extra.name for extra in extras]
    members = dict(value.entries())
    for extra in extras:
        for other, _ in extra.conflicts:
            if other not in names:
                where = dict(members[extra.name].entries())["conflicts"]
                raise where.error(f"unknown extra '{other}'", suggest(other, names))
    return extras


def load_variants(value: Value, extras: tuple[Extra, ...]) -> tuple[Variant, ...]:
    """What images can hold beside torch. Raises ConfigError, also for extras that conflict."""
    return tuple(_variant(key, member, extras) for key, member in value.entries())


def check_extras(config: Config, value: Value) -> None:
    """Raise ConfigError unless every image that is not excluded can have its variant's extras.

    What is compiled for another torch needs no exclude: such images are not in the matrix.
    """
    lines = dict(value.entries())
    for variant, cuda, source in itertools.product(config.variants, config.cudas, config.sources):
        for extra in variant.extras:
            for words, reason in _refusals(config, variant, extra, cuda, source):
                raise lines[variant.name].error(
                    f"variant {variant.name}: {reason}", f"add an exclude with {words}, reason: ..."
                )


def _refusals(
    config: Config, variant: Variant, extra: Extra, cuda: Cuda, source: Source
) -> Iterator[tuple[str, str]]:
    """The images that are built although they cannot have an extra.

    Yields the axes to exclude, as words for a hint, and the reason.
    """
    if extra.compiled and source.compiled:
        return
    release = Release(version=cuda.torch[-1])
    axes = {"variant": variant.name, "cuda": cuda.version, "source": source.name}
    whole = extra.refusal(cuda.version, release)
    if whole and not config.excluded(**axes):
        yield ", ".join(f"{axis}: '{word}'" for axis, word in axes.items()), whole
    for arch in () if whole else config.architectures:
        reason = extra.refusal(cuda.version, release, (arch.name,))
        possible = arch.capability in cuda.targets
        if reason and possible and not config.excluded(**axes, arch=arch.name):
            yield f"variant: '{variant.name}', arch: '{arch.name}'", reason


def _extra(key: str, value: Value, cudas: tuple[Cuda, ...]) -> Extra:
    fields = value.record(
        ("description", "wheels"),
        ("fit", "in-step", "arches", "replaces", "unpack", "links", "conflicts"),
    )
    if "links" in fields and "unpack" not in fields:
        raise value.error(f"extra '{key}' has links, but is not unpacked")
    for arch in fields["arches"].filled().scalars() if "arches" in fields else ():
        capability(arch, arch.text())
    for name in fields["replaces"].filled().scalars() if "replaces" in fields else ():
        if canonicalize_name(name.text()) != name.text() or not NAME.fullmatch(name.text()):
            raise name.wrong("is not the name of a wheel", "write it like cuda-bindings")
    return Extra(
        name=entry_name(key, value),
        description=fields.text("description"),
        wheels=_by_cuda(fields["wheels"].filled(), cudas),
        compiled="fit" in fields,
        optional="fit" in fields
        and fields["fit"].matching(_FIT, "required or optional") == "optional",
        in_step="in-step" in fields and bool(fields["in-step"].matching(_IN_STEP, "minor")),
        arches=fields.texts("arches"),
        replaces=fields.texts("replaces"),
        unpack=own_folder(fields["unpack"]) if "unpack" in fields else "",
        links=_links(fields["links"].filled()) if "links" in fields else (),
        conflicts=tuple(
            (other, reason.text())
            for other, reason in (fields["conflicts"].entries() if "conflicts" in fields else ())
        ),
    )


def _links(value: Value) -> tuple[tuple[str, str], ...]:
    """Name and target of each link, both below one folder. No link may lie in another one."""
    links = tuple(
        (below(member, link), below(member, member.text())) for link, member in value.entries()
    )
    for (one, _), (_, member) in itertools.product(links, value.entries()):
        inside = member.path.removeprefix(f"{value.path}.")
        if inside.startswith(f"{one}/"):
            raise member.error(f"'{inside}' lies in '{one}', which is a link, too")
    return links


def _by_cuda(value: Value, cudas: tuple[Cuda, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Requirements by CUDA version; a plain list is for all CUDA versions."""
    if value.is_list:
        words = requirements(value)
        return tuple((c.version, words) for c in cudas)
    return tuple((version, requirements(member)) for version, member in _of_cuda(value, cudas))


def _of_cuda(value: Value, cudas: tuple[Cuda, ...]) -> tuple[tuple[str, Value], ...]:
    """The members of a mapping whose keys are CUDA versions. Raises ConfigError for others."""
    known = [c.version for c in cudas]
    for version, member in value.entries():
        if version not in known:
            raise member.error(f"unknown cuda '{version}'", suggest(version, known))
    return value.entries()


def _variant(key: str, value: Value, extras: tuple[Extra, ...]) -> Variant:
    fields = value.record(
        ("description",),
        ("cuda-home", "packages", "wheels", "extras", "command", "folder", "ports"),
    )
    cuda_home = own_folder(fields["cuda-home"]) if "cuda-home" in fields else ""
    chosen = _chosen(fields, extras)
    for extra in chosen:
        if cuda_home and extra.unpack and overlap(cuda_home, extra.unpack):
            problem = f"is where extra {extra.name} is unpacked, {extra.unpack}"
            raise fields["cuda-home"].wrong(problem, "give another folder to one of them")
    command = fields["command"].matching(_COMMAND, "a command") if "command" in fields else ""
    return Variant(
        name=entry_name(key, value),
        description=fields.text("description"),
        packages=packages(fields),
        wheels=requirements(fields["wheels"]) if "wheels" in fields else (),
        extras=chosen,
        cuda_home=cuda_home,
        folder=folder(fields["folder"]) if "folder" in fields else "",
        ports=tuple(port(p) for p in (fields["ports"].scalars() if "ports" in fields else ())),
        **({"command": command} if command else {}),
    )


def _chosen(fields: Record, extras: tuple[Extra, ...]) -> tuple[Extra, ...]:
    """The extras that a variant names. Raises ConfigError if one is unknown, or two conflict."""
    known = {extra.name: extra for extra in extras}
    chosen: list[Extra] = []
    for item in fields["extras"].scalars() if "extras" in fields else ():
        if item.text() not in known:
            raise item.error(f"unknown extra '{item.text()}'", suggest(item.text(), known))
        extra = known[item.text()]
        for other in chosen:
            _check_pair(item, extra, other)
            if extra.unpack and other.unpack and overlap(extra.unpack, other.unpack):
                places = f"{other.unpack} and {extra.unpack}"
                raise _conflict(item, extra, other, f"they are unpacked to {places}")
        chosen.append(extra)
    return tuple(chosen)


def _check_pair(item: Value, extra: Extra, other: Extra) -> None:
    """Raise ConfigError at `item` if two extras conflict."""
    reason = dict(extra.conflicts).get(other.name) or dict(other.conflicts).get(extra.name)
    if reason:
        raise _conflict(item, extra, other, reason)


def _conflict(item: Value, extra: Extra, other: Extra, reason: str) -> ConfigError:
    return item.error(
        f"extras {other.name} and {extra.name} cannot be in one image: {reason}",
        "choose one of them, or put them into variants of their own",
    )
