"""All answers of `pick` as one table, for programs that cannot call it: the site's, in a browser.

`table` makes it with `pick`'s own functions, `look_up` reads it as site/answer.js does.
An answer has two halves. What a start would do follows from the GPU, the driver and the platform;
which images there are follows from the architecture, the variant, the base, torch and the platform.
So the table has both, and not their product. A verdict is the same for all drivers from one mark to
the next, and for all GPUs of a kind; only their names differ, which stand in it as {gpu}, {driver},
{branch}. Choices of images differ between architectures by {arch} and {sm} only, as a rule. Equal
rows of verdicts and equal choices are listed once, and stand elsewhere by number.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from torch_images.config.matrix import ImageSpec
from torch_images.config.types import Config, Cuda
from torch_images.errors import UsageError
from torch_images.platforms import AMD64, ARM64, PLATFORMS, Platform
from torch_images.publish import gpus, pick
from torch_images.publish.ledger import State

SCHEMA = 2
_SEPARATOR = "; "
_ANY_TORCH = ""
Row = list[dict[str, Any]]
T = TypeVar("T")


class Numbered(Generic[T]):
    """A list in which equal values stand once."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: T) -> int:
        """The place of a value, which is added where it is new."""
        number = self._numbers.setdefault(repr(value), len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


def table(
    config: Config,
    compat: Mapping[Platform, Mapping[str, str]],
    *,
    namespace: str,
    states: Mapping[ImageSpec, State],
) -> dict[str, Any]:
    """Every answer, as plain data.

    `compat` is the version of the compat library by platform and CUDA version, "" for none.
    `states` says of each image of the matrix whether it is proved.
    """
    kinds = Numbered[gpus.Gpu]()
    listed = [
        {"group": group, **_gpu(config, name, kinds)}
        for group, names in gpu_groups(config).items()
        for name in names
    ]
    marks = _marks(config, compat)
    rows, choices = Numbered[Row](), Numbered[dict[str, Any]]()
    return {
        "schema": SCHEMA,
        "words": {
            "taken": pick.TAKEN,
            "proof": pick.PROOF,
            "nothing": pick.NOTHING,
            "refused": pick.REFUSED,
            "untargeted": pick.UNTARGETED,
            "run": pick.COMMAND,
            "foreign": gpus.FOREIGN,
            "separator": _SEPARATOR,
        },
        "defaults": {
            "base": config.defaults.base,
            "variant": config.defaults.variant,
            "platform": AMD64.name,
        },
        "platforms": {
            platform.name: {
                "problem": gpus.not_built(config, platform),
                "caveat": gpus.CAVEATS.get(platform, ""),
            }
            for platform in PLATFORMS
        },
        "gpus": listed,
        "drivers": {"marks": marks, "branches": _branches(config)},
        "kinds": [_kind(config, gpu, marks, compat, rows) for gpu in kinds.values],
        "rows": rows.values,
        "images": {
            platform.name: _images(config, platform, namespace, choices)
            for platform in config.platforms
        },
        "choices": choices.values,
        "proofs": {spec.id: state.words for spec, state in states.items()},
    }


def gpu_groups(config: Config) -> dict[str, tuple[str, ...]]:
    """All names and compute capabilities that `pick` knows, by group, the newest ones first."""
    others = sorted(config.other_gpus, key=lambda other: other.capability, reverse=True)
    known = {t for cuda in config.cudas for t in cuda.targets}
    known |= {other.capability for other in others}
    return {
        **{f"{a.family}, {a.name}": (*a.geforce, *a.gpus) for a in reversed(config.architectures)},
        **{f"Others, {other.capability}": other.names for other in others},
        "Any GPU of compute capability": tuple(map(str, sorted(known, reverse=True))),
    }


def look_up(
    answers: Mapping[str, Any],
    *,
    gpu: str,
    driver: str,
    torch: str = "",
    base: str = "",
    variant: str = "",
    platform: str = "",
) -> dict[str, Any]:
    """What `pick` would say: the answer, or {"problem": ...} where it would raise UsageError.

    `gpu` is one of the table's, `driver` what `pick.find_driver` takes. The twin of answer.js.
    """
    words = answers["words"]
    held = next(entry for entry in answers["gpus"] if entry["asked"] == gpu)
    if problem := held.get("problem"):
        return {"problem": problem}
    own = held.get("platform")
    host = platform or own or answers["defaults"]["platform"]
    if own and host != own:
        asked = {"gpu": held["name"], "platform": host, "own": own}
        return {"problem": _fill(words["foreign"], asked)}
    if problem := answers["platforms"][host]["problem"]:
        return {"problem": problem}
    first = answers["drivers"]["branches"].get(driver, f"{driver}.00")
    version = driver if "." in driver else first
    branch = driver if version != driver else ""
    numbers = _numbers(version)
    row = max(i for i, mark in enumerate(answers["drivers"]["marks"]) if _numbers(mark) <= numbers)
    kind = answers["kinds"][held["kind"]]
    chosen = variant or answers["defaults"]["variant"], base or answers["defaults"]["base"], torch
    place = answers["images"][host][kind["arch"]]
    for key in chosen:
        place = place[key]
    images = answers["choices"][place]
    arch = {"arch": kind["arch"], "sm": kind["sm"]}
    if "problem" in images:
        return {"problem": _fill(images["problem"], arch)}
    names = {"gpu": held["name"], "driver": version, "branch": str(numbers[0])}
    suggestions = [
        {
            "image": _fill(images[verdict["cuda"]]["image"], arch),
            "id": (identifier := _fill(images[verdict["cuda"]]["id"], arch)),
            "works": verdict["works"],
            "why": _fill(verdict["reason"], names),
            "proof": answers["proofs"][identifier],
        }
        for verdict in answers["rows"][kind["verdicts"][host][row]]
        if verdict["cuda"] in images
    ]
    taken = _fill(words["taken"], {"branch": branch, "driver": version}) if branch else ""
    if not suggestions or not suggestions[0]["works"]:
        reasons = words["separator"].join(
            _fill(words["refused"], {"image": s["image"], "reason": s["why"]}) for s in suggestions
        )
        problem = _fill(words["nothing"], {**names, "reasons": reasons or words["untargeted"]})
        return {"problem": f"{problem}; {taken}" if taken else problem, "others": suggestions}
    best, *others = suggestions
    caveat = answers["platforms"][host]["caveat"]
    return {
        "gpu": held["name"],
        "capability": kind["capability"],
        "geforce": kind["geforce"],
        "driver": version,
        "branch": branch,
        "platform": host,
        "image": best["image"],
        "id": best["id"],
        "run": _fill(words["run"], {"image": best["image"]}),
        "proof": best["proof"],
        "why": [
            _fill(kind["serving"], names),
            best["why"],
            *([taken] if taken else []),
            _fill(words["proof"], {"proof": best["proof"]}),
            *([caveat] if caveat else []),
        ],
        "others": others,
    }


def _gpu(config: Config, asked: str, kinds: Numbered[gpus.Gpu]) -> dict[str, Any]:
    """A GPU with the number of its kind, which `kinds` learns; or why no image serves it.

    `platform` is that of all its hosts, where they have one only.
    """
    try:
        found = gpus.find_gpu(config, asked)
    except UsageError as error:
        return {"asked": asked, "problem": str(error)}
    kind = replace(found, name="{gpu}", arm64=False)
    entry = {"asked": asked, "name": found.name, "kind": kinds.number(kind)}
    return {**entry, "platform": ARM64.name} if found.arm64 else entry


def _kind(
    config: Config,
    gpu: gpus.Gpu,
    marks: Iterable[str],
    compat: Mapping[Platform, Mapping[str, str]],
    rows: Numbered[Row],
) -> dict[str, Any]:
    """The GPUs of one capability: the rows of verdicts by platform, one from each mark on."""
    verdicts = {
        platform.name: [
            rows.number(_row(config, gpu, _above(mark), platform, compat[platform]))
            for mark in marks
        ]
        for platform in config.platforms
    }
    return {
        "arch": gpu.architecture.name,
        "sm": gpu.architecture.capability.sm,
        "capability": str(gpu.capability),
        "geforce": gpu.geforce,
        "serving": pick.serving(gpu),
        "verdicts": verdicts,
    }


def _row(
    config: Config, gpu: gpus.Gpu, driver: str, platform: Platform, compat: Mapping[str, str]
) -> Row:
    """The verdicts on each CUDA version with a driver, the best first."""
    cudas = [c for c in reversed(_by_version(config)) if gpu.architecture.capability in c.targets]
    judged = pick.ordered(
        pick.judge(
            *(config, cuda, gpu, driver),
            compat=compat[cuda.version],
            platform=platform,
            name=cuda.version,
        )
        for cuda in cudas
    )
    return [
        {"cuda": s.image, "works": s.works, "reason": _without(driver, s.reason)} for s in judged
    ]


def _images(
    config: Config, platform: Platform, namespace: str, choices: Numbered[dict[str, Any]]
) -> dict[str, Any]:
    """By architecture, variant, base and torch: the number of a choice.

    A choice has the image of each CUDA version, or a problem.
    """
    tree: dict[str, Any] = {}
    torches = (_ANY_TORCH, *config.names("torch"))
    axes = config.architectures, config.names("variant"), config.names("base"), torches
    for architecture, variant, base, torch in itertools.product(*axes):
        try:
            found = pick.candidates(
                *(config, architecture),
                torch=torch,
                base=base,
                variant=variant,
                platform=platform,
                namespace=namespace,
            )
        except UsageError as error:
            problem = str(error).replace(f"arch {architecture.name},", "arch {arch},")
            images: dict[str, Any] = {"problem": problem}
        else:
            name = architecture.capability.sm
            images = {
                spec.cuda.version: {
                    "id": spec.id.replace(f"-{name}-", "-{sm}-", 1),
                    "image": image.replace(f"-{name}", "-{sm}"),
                }
                for spec, image in found
            }
        branch = tree.setdefault(architecture.name, {}).setdefault(variant, {})
        branch.setdefault(base, {})[torch] = choices.number(images)
    return tree


def _marks(config: Config, compat: Mapping[Platform, Mapping[str, str]]) -> list[str]:
    """The drivers, the oldest first, from which on a verdict may be another one."""
    marks = {"0.0"}
    for cuda in config.cudas:
        marks |= {cuda.driver, f"{cuda.floor}.0"}
        libraries = {versions[cuda.version] for versions in compat.values()} - {""}
        own = [int(version.partition(".")[0]) for version in libraries]
        for branch in (*cuda.compat, *own):
            marks |= {f"{branch}.0", f"{branch + 1}.0"}
    return sorted(marks, key=_numbers)


def _branches(config: Config) -> dict[str, str]:
    """What stands for a branch that does not begin with ".00"; and the branches hosts have."""
    known = {cuda.driver.partition(".")[0] for cuda in config.cudas}
    known |= {branch for _, branch in config.pods.hosts}
    return {branch: pick.find_driver(config, branch) for branch in sorted(known)}


def _above(mark: str) -> str:
    """A driver a little newer than a mark, whose text is that of no mark and no minimum."""
    whole = 3
    parts = mark.split(".")
    if len(parts) == whole:
        return f"{parts[0]}.{parts[1]}.{int(parts[2]) + 1:02}"
    return f"{mark}.01"


def _without(driver: str, reason: str) -> str:
    """A reason without the driver that it was asked for."""
    text = reason.replace(driver, "{driver}")
    branch = driver.partition(".")[0]
    return re.sub(rf"(?<![\w.]){branch}(?![\w.])", "{branch}", text)


def _fill(text: str, values: Mapping[str, str]) -> str:
    """A sentence with its values; no value is looked into, and no other brace is touched."""
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), text)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _by_version(config: Config) -> list[Cuda]:
    return sorted(config.cudas, key=lambda cuda: _numbers(cuda.version))
