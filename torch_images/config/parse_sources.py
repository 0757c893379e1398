"""The sections `features` and `sources` of images.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from torch_images.config.parse_fields import (
    below,
    capability,
    entry_name,
    packages,
    release,
    requirements,
    url,
)
from torch_images.config.types import Cuda, Feature, Source, Tree
from torch_images.config.yaml_nodes import Record, Value
from torch_images.errors import shown, suggest

_OPTION = re.compile(r"[A-Z][A-Z0-9_]{1,99}", re.IGNORECASE)
COMMIT = re.compile(r"[0-9a-f]{40}")


# What only a source that is compiled has.
_COMPILING = ("beside", "packages", "wheels", "features", "without")


def load_features(value: Value) -> tuple[Feature, ...]:
    """The section `features`. Raises ConfigError."""
    features = []
    for name, member in value.entries():
        fields = member.record((), ("option", "arch", "needs"))
        if "option" in fields:
            _option(fields.text("option"), fields["option"])
        arch = capability(fields["arch"], fields.text("arch")) if "arch" in fields else None
        needs = below(fields["needs"], fields.text("needs")) if "needs" in fields else ""
        features.append(
            Feature(
                name=entry_name(name, member),
                option=fields.text("option"),
                arch=arch,
                needs=needs,
            )
        )
    return tuple(features)


def load_sources(
    value: Value, features: tuple[Feature, ...], cudas: tuple[Cuda, ...]
) -> tuple[Source, ...]:
    """The section `sources`. Raises ConfigError."""
    sources: dict[str, Source] = {}
    for key, member in value.entries():
        sources[entry_name(key, member)] = _source(key, member, features, cudas, sources)
    return tuple(sources.values())


def _source(
    key: str,
    value: Value,
    features: tuple[Feature, ...],
    cudas: tuple[Cuda, ...],
    others: Mapping[str, Source],
) -> Source:
    fields = value.record(
        ("description",),
        ("like", "torch", "triton", "beside", "packages", "wheels", "features", "without"),
    )
    origin = _origin(fields, key, others)
    if "beside" in fields:
        origin = replace(origin, beside=_beside(fields["beside"].filled(), cudas))
    if "packages" in fields:
        origin = replace(origin, packages=packages(fields))
    if "wheels" in fields:
        origin = replace(origin, wheels=requirements(fields["wheels"]))
    if not origin.compiled:
        extra = next((k for k in _COMPILING if k in fields), "")
        if extra:
            raise fields[extra].error(f"source '{key}' compiles nothing that has {extra}")
        return origin
    if not origin.beside:
        raise value.error(
            f"source '{key}' does not say which torch's CUDA libraries it is compiled with",
            f"give beside, such as {{'{cudas[-1].version}': {cudas[-1].torch[-1]}}}",
        )
    wanted = _named_features(fields, "features", features) or origin.features
    without = (*origin.without, *_named_features(fields, "without", features))
    kept = tuple(feature for feature in wanted if feature not in without)
    return replace(origin, features=kept, without=without)


def _beside(value: Value, cudas: tuple[Cuda, ...]) -> tuple[tuple[str, str], ...]:
    """CUDA versions, each with one of its releases of torch. Raises ConfigError for others."""
    releases = {cuda.version: cuda.torch for cuda in cudas}
    for version, member in value.entries():
        if version not in releases:
            raise member.error(f"unknown cuda '{version}'", suggest(version, releases))
        if member.text() not in releases[version]:
            problem = f"CUDA {version} has no torch '{member.text()}'"
            raise member.error(problem, suggest(member.text(), releases[version]))
    return tuple((version, member.text()) for version, member in value.entries())


def _named_features(fields: Record, key: str, known: tuple[Feature, ...]) -> tuple[Feature, ...]:
    """The features that the list under `key` names. Raises ConfigError for an unknown one."""
    by_name = {feature.name: feature for feature in known}
    named = []
    fields.texts(key)  # raises for one that is listed twice
    for item in fields[key].items() if key in fields else ():
        if item.text() not in by_name:
            raise item.error(f"unknown feature '{item.text()}'", suggest(item.text(), by_name))
        named.append(by_name[item.text()])
        if key == "without" and not named[-1].option:
            raise item.error(f"feature '{item.text()}' cannot be left out: no option does it")
    return tuple(named)


def _origin(fields: Record, key: str, others: Mapping[str, Source]) -> Source:
    """A source with its trees and options: its own, or those of the source that it is `like`."""
    plain = Source(name=key, root=key, description=fields.text("description"))
    if "like" in fields:
        other = fields.text("like")
        if other not in others or not others[other].compiled:
            known = [name for name, source in others.items() if source.compiled]
            raise fields["like"].error(f"no source '{other}' above", suggest(other, known))
        plain = replace(others[other], name=key, description=plain.description)
    if "torch" not in fields:
        if "triton" in fields:
            raise fields["triton"].error(f"source '{key}' compiles triton, and no torch for it")
        return plain
    alone = replace(
        plain,
        root=key,
        torch=_tree(fields["torch"]),
        triton=None,
        torch_options=_options(fields["torch"]),
        triton_options=(),
    )
    if "triton" not in fields:
        return alone
    triton = fields["triton"]
    return replace(alone, triton=_tree(triton), triton_options=_options(triton))


def _tree(value: Value) -> Tree:
    fields = value.record(("repository", "commit", "version"), ("options",))
    version = fields["version"]
    if release(version) != version.text():
        raise version.wrong("is not how PEP 440 writes it", f"write {release(version)}")
    return Tree(
        repository=url(fields["repository"], secure=True),
        commit=fields["commit"].matching(COMMIT, "a full commit of 40 hexadecimal digits"),
        version=version.text(),
    )


def _options(value: Value) -> tuple[tuple[str, str], ...]:
    fields = value.record(("repository", "commit", "version"), ("options",))
    options = fields["options"].entries() if "options" in fields else ()
    return tuple((_option(key, member), member.text()) for key, member in options)


def _option(option: str, value: Value) -> str:
    """The name of an option of a build, which becomes a variable of its environment.

    Whether the tree reads it is checked before it is compiled: scripts/image/source/options.py.
    Raises ConfigError for what cannot be the name of a variable.
    """
    if not _OPTION.fullmatch(option):
        raise value.error(
            f"'{shown(option)}' is not the name of an option", "write one such as USE_NCCL"
        )
    return option
