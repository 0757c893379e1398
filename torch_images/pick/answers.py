"""The answers of `pick` for every GPU and driver branch, as the rows of one table. Pure.

A row is for GPUs that `pick` treats alike, for hosts of one platform, and for all driver branches
that get the same image in the same way. Variant, base and torch are the defaults of `pick`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from torch_images.config.choose import choose_id
from torch_images.config.image import ImageSpec
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.pick import gpus, pick
from torch_images.pick.drivers import find_driver
from torch_images.platforms import AMD64, ARM64, Platform
from torch_images.verify.ledger import State

Compat = Mapping[Platform, Mapping[str, str]]
# Names for the branches before and after those in images.yaml and the locks.
OLDER, NEWER = "older", "newer"
# The source of libcuda, by the rank of a suggestion.
_WAYS = (
    "the host's driver",
    "NVIDIA's compat library, which the image has",
    "the host's driver, by minor-version compatibility: Numba and CuPy raw kernels will fail",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One answer.

    `kind` describes its GPUs, such as "8.9, GeForce". `platform` is "" for any; `branches` has the
    oldest first, () for any driver. `way` is the source of libcuda. `command` builds and runs the
    image. If no image works, only `way` is set, which says why.
    """

    gpus: tuple[str, ...]
    kind: str
    platform: str = ""
    branches: tuple[str, ...] = ()
    way: str
    image: str = ""
    id: str = ""
    torch: str = ""
    command: str = ""
    proof: str = ""


def rows(
    config: Config, compat: Compat, *, namespace: str, state: Callable[[ImageSpec], State]
) -> Iterator[Row]:
    """All answers, for the newest GPUs and drivers first.

    `compat` is the version of the compat library by platform and CUDA version, "" without one.
    `state` says whether an image is tested.
    """
    for (kind, problem), names in _kinds(config).items():
        if problem:
            yield Row(gpus=names, kind=kind, way=problem)
            continue
        gpu = gpus.find_gpu(config, names[0])
        for platform in (ARM64,) if gpu.arm64 else config.platforms:
            row = Row(gpus=names, kind=kind, platform=platform.name, way="")
            try:
                best = _best(config, gpu, platform, compat, namespace=namespace, state=state)
            except UsageError as error:
                yield replace(row, way=str(error))
            else:
                yield from _merged(config, row, best)


def branches(config: Config, compat: Compat) -> tuple[str, ...]:
    """The driver branches that images.yaml and the locks name, the oldest first."""
    drivers = {branch for _, branch in config.pods.hosts}
    drivers |= {version for versions in compat.values() for version in versions.values()} - {""}
    for cuda in config.cudas:
        drivers |= {cuda.driver, cuda.floor, *map(str, cuda.compat)}
    return tuple(sorted({driver.partition(".")[0] for driver in drivers}))


def _kinds(config: Config) -> dict[tuple[str, str], tuple[str, ...]]:
    """The names of GPUs by their kind, and by the reason why no image serves them, or ""."""
    known = [(a.capability, (*a.geforce, *a.gpus)) for a in config.architectures]
    known += config.other_gpus
    kinds: dict[tuple[str, str], tuple[str, ...]] = {}
    for capability, names in sorted(known, key=lambda pair: pair[0], reverse=True):
        for name in names:
            try:
                gpu = gpus.find_gpu(config, name)
            except UsageError as error:
                problem = str(error).replace(f"which {name} has", "which this GPU has")
                key = str(capability), problem
            else:
                line = f", {gpu.line}" if gpu.line else ""
                key = f"{capability}{line}{', beside an Arm processor' if gpu.arm64 else ''}", ""
            kinds[key] = (*kinds.get(key, ()), name)
    return kinds


def _best(
    config: Config,
    gpu: gpus.Gpu,
    platform: Platform,
    compat: Compat,
    *,
    namespace: str,
    state: Callable[[ImageSpec], State],
) -> dict[str, pick.Suggestion | None]:
    """The image for each driver branch, the newest branch first; None if none works.

    Raises UsageError with the reason if no image works even with the newest driver.
    """
    host = gpus.host_platform(config, gpu, platform.name)
    known = branches(config, compat)
    drivers = {NEWER: str(int(known[-1]) + 1), **{branch: branch for branch in reversed(known)}}
    drivers[OLDER] = str(int(known[0]) - 1)
    best: dict[str, pick.Suggestion | None] = {}
    newest = gpu.architecture.last_driver or NEWER
    for branch, text in drivers.items():
        driver = find_driver(config, text)
        suggestions = pick.pick(
            config,
            gpu,
            driver.version,
            lambda cuda: compat[host][cuda.version],
            variant=config.defaults.variant,
            platform=host,
            namespace=namespace,
            state=state,
        )
        if branch == newest:
            pick.answer(config, gpu, driver, suggestions, platform=host)  # raises if none works
        best[branch] = next((s for s in suggestions[:1] if s.works), None)
    return best


def _merged(config: Config, row: Row, best: Mapping[str, pick.Suggestion | None]) -> Iterator[Row]:
    """Rows of branches with the same answer, in the order of `best`: the newest first."""
    dropped = list(takewhile(lambda branch: not best[branch], best))
    working = list(takewhile(lambda branch: best[branch], list(best)[len(dropped) :]))
    same: dict[tuple[str, int], list[str]] = {}
    for branch, suggestion in best.items():
        nothing = ("dropped" if branch in dropped else "", 0)
        same.setdefault((suggestion.id, suggestion.rank) if suggestion else nothing, []).append(
            branch
        )
    for together in same.values():
        drivers = replace(row, branches=tuple(reversed(together)))
        if one := best[together[0]]:
            spec = choose_id(config, one.id)
            told = pick.commands(config, spec, one.reference, locked=one.locked, machine=AMD64)
            found = replace(drivers, image=one.image, id=one.id, torch=one.torch)
            yield replace(found, way=_WAYS[one.rank], command=told["command"], proof=one.proof)
        elif together[0] in dropped:
            yield replace(drivers, way=f"take driver {working[0]}: newer ones dropped this GPU")
        else:
            yield replace(drivers, way=f"take driver {working[-1]} or newer")
