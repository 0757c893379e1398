"""Rules of images.yaml that involve several fields. Pure.

Each rule yields its problems, and `problems` runs all rules in order. A rule may rely on those
before it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch_images.arch import Capability
from torch_images.config.extras import Extra
from torch_images.config.fields import overlap
from torch_images.config.sources import Source
from torch_images.config.types import AXES, Config
from torch_images.errors import suggest

# More combinations would take seconds to enumerate, and hours each to build.
_MOST_COMBINATIONS = 20000
# Parts of identifiers and tags that no name may look like.
_RESERVED = re.compile(r"latest|compat|amd64|arm64|(?:cu|sm|torch|py)[0-9].*")
# Keys of a source that only matter for compiling torch.
_COMPILING = ("beside", "overrides", "packages", "wheels", "headers", "features", "without")
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """A problem at a place of the file. The message is the place's name followed by `text`."""

    path: Place
    text: str
    hint: str = ""
    quote: bool = False


def problems(config: Config) -> Iterator[Problem]:
    """All problems of a configuration."""
    for rule in _RULES:
        yield from rule(config)


def _size(config: Config) -> Iterator[Problem]:
    most = math.prod(len(config.names(axis)) for axis in AXES if axis not in ("cuda", "torch"))
    most *= sum(len(cuda.torch) for cuda in config.cudas)
    if most > _MOST_COMBINATIONS:
        hint = f"remove some, so that {_MOST_COMBINATIONS} or fewer are left"
        yield Problem((), f"has {most} combinations of {', '.join(AXES)}", hint)


def _names(config: Config) -> Iterator[Problem]:
    """Identifiers and tags join names of these three axes, so each name must be unique."""
    seen: dict[str, str] = {}
    for axis in ("source", "base", "variant"):
        for name in config.names(axis):
            path = (f"{axis}s", name, "")
            if name in seen:
                yield Problem(path, f"has the name of a {seen[name]}", "rename one of them")
            if _RESERVED.fullmatch(name):
                yield Problem(path, "has a name that tags use for something else", "rename it")
            seen[name] = axis


def _order(config: Config) -> Iterator[Problem]:
    """Identifiers, labels and tables name architectures in the order of this section."""
    for one, other in itertools.pairwise(config.architectures):
        if Capability.parse(one.name) > Capability.parse(other.name):
            text = f"comes after {one.name}; list architectures in ascending order"
            yield Problem(("architectures", other.name, ""), text)


def _gpus(config: Config) -> Iterator[Problem]:
    lists = [
        (("architectures", arch.name, key), names)
        for arch in config.architectures
        for key, names in (("geforce", arch.geforce), ("gpus", arch.gpus))
    ]
    lists += [(("other-gpus", str(o.capability), ""), o.names) for o in config.other_gpus]
    seen: set[str] = set()
    for path, names in lists:
        for place, gpu in enumerate(names):
            if gpu in seen:
                yield Problem((*path, place), f"lists the GPU '{gpu}' twice", "leave one")
            seen.add(gpu)
    named: list[tuple[Place, str]] = [
        *((("arm64-gpus", place), gpu) for place, gpu in enumerate(config.arm64_gpus)),
        *((("gpu-aliases", gpu), gpu) for gpu, _ in config.gpu_aliases),
    ]
    for at, gpu in named:
        if gpu not in seen:
            yield Problem(at, "is not in any list of GPUs", suggest(gpu, sorted(seen)), quote=True)


def _cudas(config: Config) -> Iterator[Problem]:
    for cuda in config.cudas:
        path = ("cuda", cuda.version)
        if bool(cuda.release) != bool(cuda.archives):
            yield Problem(path, "must give both release and archives, or neither")
        major = re.escape(cuda.version)
        if cuda.release and not re.fullmatch(rf"{major}\.[0-9]{{1,2}}", cuda.release):
            text = f"is not a release of CUDA {cuda.version} like {cuda.version}.1"
            yield Problem((*path, "release"), text, quote=True)
        if cuda.base not in config.names("base"):
            hint = suggest(cuda.base, config.names("base"))
            yield Problem((*path, "base"), "is an unknown base", hint, quote=True)
        if int(cuda.floor) > int(cuda.driver.partition(".")[0]):
            yield Problem((*path, "floor"), f"is newer than the driver {cuda.driver}", quote=True)


def _bases(config: Config) -> Iterator[Problem]:
    for base in config.bases:
        path = ("bases", base.name)
        if bool(base.suite) == bool(base.images):
            yield Problem(path, "must have either a suite to bootstrap or images, not both")
        if base.images and not base.mirror:
            yield Problem(path, "lacks the mirror of its packages")


def _sources(config: Config) -> Iterator[Problem]:
    for source in config.sources:
        path = ("sources", source.name)
        if source.torch:
            yield from _compiled(config, source, path)
            continue
        if source.triton:
            yield Problem((*path, "triton"), "is compiled, but torch is not")
        for key in _COMPILING:
            if getattr(source, key):
                yield Problem((*path, key), "is for compiling, but the source names no torch")


def _compiled(config: Config, source: Source, path: Place) -> Iterator[Problem]:
    for place, requirement in enumerate(source.overrides):
        if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+", requirement):
            at = (*path, "overrides", place)
            yield Problem(
                at, "is not one version of a package", "write one such as triton==3.2.0", quote=True
            )
    if not source.beside:
        newest = config.cudas[-1]
        hint = f"give beside, such as {{'{newest.version}': {newest.torch[-1]}}}"
        yield Problem(path, "does not name the torch whose CUDA libraries it uses", hint)
    releases = {cuda.version: cuda.torch for cuda in config.cudas}
    for version, torch in source.beside:
        if torch not in releases[version]:
            at, hint = (*path, "beside", version), suggest(torch, releases[version])
            yield Problem(at, f"is not a torch of CUDA {version}", hint, quote=True)
    for place, feature in enumerate(source.without):
        at = (*path, "without", place)
        if not feature.option:
            yield Problem(at, "cannot be left out: it has no option", quote=True)
        if feature in source.features:
            yield Problem(at, "is also one of its features", "leave one", quote=True)


def _options(config: Config) -> Iterator[Problem]:
    for source in config.sources:
        for key, tree, options in (
            ("torch-options", source.torch, source.torch_options),
            ("triton-options", source.triton, source.triton_options),
        ):
            if options and not tree:
                yield Problem(("sources", source.name, key), "has no tree to compile")


def _extras(config: Config) -> Iterator[Problem]:
    names = [extra.name for extra in config.extras]
    for extra in config.extras:
        path = ("extras", extra.name)
        if bool(extra.wheels) == bool(extra.pins):
            yield Problem(path, "must have either wheels or pins")
        if extra.links and not extra.unpack:
            yield Problem(path, "has links, but is not unpacked")
        for other, _ in extra.conflicts:
            if other not in names:
                at = (*path, "conflicts", other, "")
                yield Problem(at, "is an unknown extra", suggest(other, names))


def _conflict(one: Extra, two: Extra) -> str:
    """Why two extras cannot be in one image; "" if they can."""
    reason = dict(one.conflicts).get(two.name) or dict(two.conflicts).get(one.name, "")
    if not reason and one.unpack and two.unpack and overlap(one.unpack, two.unpack):
        return f"they are unpacked to {two.unpack} and {one.unpack}"
    return reason


def _variants(config: Config) -> Iterator[Problem]:
    for variant in config.variants:
        path = ("variants", variant.name)
        for place, extra in enumerate(variant.extras):
            for other in variant.extras[:place]:
                if reason := _conflict(extra, other):
                    text = f"cannot be in one image with {other.name}: {reason}"
                    hint = "choose one of them, or put them into separate variants"
                    yield Problem((*path, "extras", place), text, hint, quote=True)
            if variant.cuda_home and extra.unpack and overlap(variant.cuda_home, extra.unpack):
                text = f"is the folder of extra {extra.name}, {extra.unpack}"
                hint = "give another folder to one of them"
                yield Problem((*path, "cuda-home"), text, hint, quote=True)


def _removals(config: Config) -> Iterator[Problem]:
    for kind, narrowed in (("always", False), ("arch", True)):
        removals = [removal for removal in config.removals if removal.narrowed == narrowed]
        for place, removal in enumerate(removals):
            path: Place = ("removals", kind, place)
            changed = next((k for k in ("code", "symbols", "lists") if getattr(removal, k)), "")
            if not removal.files and not changed:
                yield Problem(path, "must name files, code, symbols or lists")
            for number, wheel in enumerate(removal.wheels if changed else ()):
                if wheel.startswith(("nvidia-", "cuda-")):
                    text = f"cannot lose '{changed}': NVIDIA's licence forbids changed copies"
                    hint = "leave whole files out, or nothing"
                    yield Problem((*path, "of", number), text, hint, quote=True)


def _toolkits(config: Config) -> Iterator[Problem]:
    """An image needs a compiler if it has a toolkit or a compiled source."""
    needing = [("variant", v.name, config.names("cuda")) for v in config.variants if v.cuda_home]
    needing += [("source", s.name, tuple(dict(s.beside))) for s in config.sources if s.compiled]
    for axis, name, versions in needing:
        for cuda in config.cudas:
            provided = cuda.toolkit or cuda.archives or cuda.version not in versions
            if not provided and not config.excluded(**{axis: name, "cuda": cuda.version}):
                text = f"has a compiler, but CUDA {cuda.version} names none"
                hint = (
                    f"add an exclude with cuda: '{cuda.version}', {axis}: '{name}' and a "
                    "reason, or a toolkit to the CUDA version"
                )
                yield Problem((f"{axis}s", name), text, hint)


_RULES = (
    _size,
    _names,
    _order,
    _gpus,
    _cudas,
    _bases,
    _sources,
    _options,
    _extras,
    _variants,
    _removals,
    _toolkits,
)
