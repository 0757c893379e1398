"""All answers of `pick` as one table, for programs that cannot call it: the site's, in a browser.

`table` makes it with `pick`'s own functions, `look_up` reads it as site/answer.js does.
An answer has two halves. What a start would do follows from the GPU and the driver alone; which
images there are follows from the architecture, the variant, the base and torch. So the table has
both, and not their product. A verdict is the same for all drivers from one mark to the next, and
for all GPUs of a kind; only their names differ, which stand in it as {gpu}, {driver}, {branch}.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch_images.config.matrix import ImageSpec
from torch_images.config.types import Config, Cuda
from torch_images.errors import UsageError
from torch_images.publish import pick
from torch_images.publish.ledger import State
from torch_images.publish.platforms import PLATFORMS, host_platform

SCHEMA = 1
_SEPARATOR = "; "
_ANY_TORCH = ""


def table(
    config: Config,
    compat: Mapping[str, str],
    *,
    namespace: str,
    states: Mapping[ImageSpec, State],
) -> dict[str, Any]:
    """Every answer, as plain data.

    `compat` is the version of the compat library by CUDA version, "" for none. `states` says of
    each image of the matrix whether it is proved.
    """
    kinds: dict[pick.Gpu, int] = {}
    gpus = [
        {"group": group, **_gpu(config, name, kinds)}
        for group, names in gpu_groups(config).items()
        for name in names
    ]
    marks = _marks(config, compat)
    return {
        "schema": SCHEMA,
        "words": {
            "taken": pick.TAKEN,
            "proof": pick.PROOF,
            "nothing": pick.NOTHING,
            "refused": pick.REFUSED,
            "untargeted": pick.UNTARGETED,
            "run": pick.COMMAND,
            "separator": _SEPARATOR,
        },
        "defaults": {"base": config.defaults.base, "variant": config.defaults.variant},
        "platforms": {name: _problem(name) for name in PLATFORMS},
        "gpus": gpus,
        "drivers": {"marks": marks, "branches": _branches(config)},
        "kinds": [_kind(config, gpu, marks, compat) for gpu in kinds],
        "images": _images(config, namespace),
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
    if problem := held.get("problem") or answers["platforms"].get(platform):
        return {"problem": problem}
    first = answers["drivers"]["branches"].get(driver, f"{driver}.00")
    version = driver if "." in driver else first
    branch = driver if version != driver else ""
    numbers = _numbers(version)
    row = max(i for i, mark in enumerate(answers["drivers"]["marks"]) if _numbers(mark) <= numbers)
    kind = answers["kinds"][held["kind"]]
    chosen = variant or answers["defaults"]["variant"], base or answers["defaults"]["base"], torch
    images = answers["images"][kind["arch"]]
    for key in chosen:
        images = images[key]
    if "problem" in images:
        return {"problem": images["problem"]}
    names = {"gpu": held["name"], "driver": version, "branch": str(numbers[0])}
    suggestions = [
        {
            "image": images[verdict["cuda"]]["image"],
            "id": images[verdict["cuda"]]["id"],
            "works": verdict["works"],
            "why": _fill(verdict["reason"], names),
            "proof": answers["proofs"][images[verdict["cuda"]]["id"]],
        }
        for verdict in kind["verdicts"][row]
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
    return {
        "gpu": held["name"],
        "capability": kind["capability"],
        "geforce": kind["geforce"],
        "driver": version,
        "branch": branch,
        "image": best["image"],
        "id": best["id"],
        "run": _fill(words["run"], {"image": best["image"]}),
        "proof": best["proof"],
        "why": [
            _fill(kind["serving"], names),
            best["why"],
            *([taken] if taken else []),
            _fill(words["proof"], {"proof": best["proof"]}),
        ],
        "others": others,
    }


def _gpu(config: Config, asked: str, kinds: dict[pick.Gpu, int]) -> dict[str, Any]:
    """A GPU with the number of its kind, which `kinds` learns; or why no image serves it."""
    try:
        found = pick.find_gpu(config, asked)
    except UsageError as error:
        return {"asked": asked, "problem": str(error)}
    if found.arm64 and (problem := _problem(gpu=found.name)):
        return {"asked": asked, "problem": problem}
    kind = replace(found, name="{gpu}")
    return {"asked": asked, "name": found.name, "kind": kinds.setdefault(kind, len(kinds))}


def _kind(
    config: Config, gpu: pick.Gpu, marks: Iterable[str], compat: Mapping[str, str]
) -> dict[str, Any]:
    """The GPUs of one capability: the verdicts on each CUDA version from each mark on."""
    cudas = [c for c in reversed(_by_version(config)) if gpu.architecture.capability in c.targets]
    verdicts = []
    for mark in marks:
        driver = _above(mark)
        judged = pick.ordered(
            pick.judge(config, cuda, gpu, driver, compat=compat[cuda.version], name=cuda.version)
            for cuda in cudas
        )
        verdicts.append(
            [
                {"cuda": s.image, "works": s.works, "reason": _without(driver, s.reason)}
                for s in judged
            ]
        )
    return {
        "arch": gpu.architecture.name,
        "capability": str(gpu.capability),
        "geforce": gpu.geforce,
        "serving": pick.serving(gpu),
        "verdicts": verdicts,
    }


def _images(config: Config, namespace: str) -> dict[str, Any]:
    """By architecture, variant, base and torch: the image of each CUDA version, or a problem."""
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
                namespace=namespace,
            )
        except UsageError as error:
            images: dict[str, Any] = {"problem": str(error)}
        else:
            images = {s.cuda.version: {"id": s.id, "image": image} for s, image in found}
        branch = tree.setdefault(architecture.name, {}).setdefault(variant, {})
        branch.setdefault(base, {})[torch] = images
    return tree


def _marks(config: Config, compat: Mapping[str, str]) -> list[str]:
    """The drivers, the oldest first, from which on a verdict may be another one."""
    marks = {"0.0"}
    for cuda in config.cudas:
        marks |= {cuda.driver, f"{cuda.floor}.0"}
        own = [int(compat[cuda.version].partition(".")[0])] if compat[cuda.version] else []
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


def _problem(platform: str = "", *, gpu: str = "") -> str:
    """Why no image is for a platform, or for the hosts of a GPU; "" if that is no reason."""
    try:
        host_platform(platform, gpu=gpu)
    except UsageError as error:
        return str(error)
    return ""
