"""A GPU and a driver -> the image to run on them, and why. Pure but for locks/.

What would happen at the start of each image is asked of the module that decides it there:
scripts/image/runtime/decision.py. So the answer and the start cannot disagree.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version

from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec, short
from torch_images.config.matrix import of_the_project
from torch_images.config.selection import cudas_for
from torch_images.config.types import Architecture, Config, Cuda
from torch_images.errors import UsageError, shown, suggest
from torch_images.platforms import Platform
from torch_images.project import project_root
from torch_images.publish import tag_rules
from torch_images.publish.gpus import CAVEATS, Gpu
from torch_images.publish.ledger import State

_DRIVER = re.compile(r"[0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,2})?")
_BRANCH = re.compile(r"[0-9]{3}")


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """One image for a GPU: whether it works there, by which libcuda, and why, in a sentence.

    `image` is its name in a registry, `id` its identifier. `rank` orders those that work: natively,
    with NVIDIA's compat library, by minor version compatibility. `proof` says whether the image was
    built and verified, `listed` whether the catalogue has it.
    """

    image: str
    works: bool
    rank: int
    reason: str
    id: str = ""
    proof: str = ""
    listed: bool = True


def find_driver(config: Config, named: str) -> str:
    """The version of a driver; for a branch, such as "550", that of its oldest driver.

    Where that is not known, it is a version before all of them. Raises UsageError for any other
    word.
    """
    if _BRANCH.fullmatch(named):
        # CUDA's own minimum is the first driver of the branch that came out with it.
        first = [c.driver for c in config.cudas if c.driver.partition(".")[0] == named]
        return min(first, key=Version, default=f"{named}.00")
    if not _DRIVER.fullmatch(named):
        raise UsageError(
            f"'{named}' is not a driver's version",
            "give it as nvidia-smi does, such as 570.133, or its branch, such as 570",
        )
    return named


def pick(
    config: Config,
    gpu: Gpu,
    driver: str,
    compat: Callable[[Cuda], str],
    *,
    platform: Platform,
    namespace: str,
    state: Callable[[ImageSpec], State],
    **axes: str,
) -> tuple[Suggestion, ...]:
    """Every image that could serve, the best first.

    `driver` is a version, see `find_driver`. `platform` is the host's, see `gpus.host_platform`.
    `compat` is the version of the compat library of a CUDA version for that platform, or "".
    `state` says whether an image is proved. `axes` are as for `candidates`, which may raise.
    """
    suggestions = []
    for spec in candidates(config, gpu.architecture, platform, **axes):
        judged = judge(
            *(config, spec.cuda, gpu, driver),
            compat=compat(spec.cuda),
            platform=platform,
            name=f"{namespace}/{spec.repository}:{registry_tags(config, spec)[0]}",
        )
        listed = of_the_project(config, spec)
        suggestions.append(replace(judged, id=spec.id, proof=state(spec).words, listed=listed))
    return tuple(sorted(suggestions, key=lambda s: (not s.works, not s.listed, s.rank)))


def candidates(
    config: Config, architecture: Architecture, platform: Platform, **axes: str
) -> tuple[ImageSpec, ...]:
    """The images for an architecture and a platform, the newest CUDA first.

    `axes` has a variant, and may have a torch and a base. CUDA versions without such an image are
    left out. Raises UsageError where that are all, and for an unknown variant or base. It has the
    reason of the default CUDA version, or of the newest one that has that torch.
    """
    for axis in ("variant", "base"):
        if (named := axes.get(axis)) and named not in (known := config.names(axis)):
            raise UsageError(f"unknown {axis} '{shown(named)}'", suggest(named, known))
    given = {"torch": None, **{axis: named or None for axis, named in axes.items()}}
    found = []
    refused: list[tuple[Cuda, UsageError]] = []
    for cuda in config.cudas:
        if architecture.capability not in cuda.targets:
            continue
        own = {**given, "cuda": cuda.version, "platform": platform.name}
        try:
            found.append(_serving(config, architecture, own))
        except UsageError as error:
            refused.append((cuda, error))
    if refused and not found:
        raise max(refused, key=lambda pair: _telling(config, pair[0], axes.get("torch", "")))[1]
    return tuple(sorted(found, key=lambda spec: Version(spec.cuda.version), reverse=True))


def _serving(
    config: Config, architecture: Architecture, axes: Mapping[str, str | None]
) -> ImageSpec:
    """The image with these axes for an architecture.

    It is the one for that alone if the catalogue has it, else the whole one if the catalogue has
    that. Raises UsageError as `choose` does.
    """
    whole = choose(config, **axes)
    if architecture not in whole.architectures:
        older = choose(config, **axes, arch=architecture.name)
        if older.release.facts or axes["torch"]:
            return older
        # Nobody looked into that release, so the reason of the newest one is the answer.
        axes = {**axes, "torch": whole.release.version}
        return choose(config, **axes, arch=architecture.name)
    with contextlib.suppress(UsageError):  # it may be that of an older architecture
        one = choose(config, **axes, arch=architecture.name)
        if of_the_project(config, one) or not of_the_project(config, whole):
            return one
    return whole


def _telling(config: Config, cuda: Cuda, torch: str) -> tuple[bool, bool, Version]:
    """How much the refusal of a CUDA version says: one without that torch says only that."""
    has = any(release == torch or release.startswith(f"{torch}.") for release in cuda.torch)
    return has or not torch, cuda.version == config.defaults.cuda, Version(cuda.version)


def registry_tags(config: Config, spec: ImageSpec) -> tuple[str, ...]:
    """The floating tags of an image in a registry, where one tag names it for all platforms."""
    suffix = spec.platform.suffix
    return tuple(tag.removesuffix(suffix) for tag in tag_rules.floating(config, spec))


def command(image: str) -> str:
    """How to run an image."""
    return f"docker run --rm --gpus all {image}"


def build_commands(config: Config, spec: ImageSpec) -> dict[str, str]:
    """How to build an image in a clone, and how to run what was built."""
    local = f"{spec.repository}:{short(config, spec)}"
    return {"build": shlex.join(["./inv", "build", *spec.arguments]), "local": command(local)}


def serving(gpu: Gpu) -> str:
    """What a GPU is, and that images have code for it."""
    kind = f"{gpu.architecture.family}{', GeForce' if gpu.geforce else ''}"
    name = gpu.architecture.name
    serves = f"a build fails unless the image has code for {name}"
    if gpu.capability != gpu.architecture.capability:
        serves += f", which {gpu.capability} runs, too"
    return f"{gpu.name} is compute capability {gpu.capability} ({kind}); {serves}"


def answer(
    gpu: Gpu,
    driver: str,
    suggestions: Sequence[Suggestion],
    *,
    platform: Platform,
    branch: str = "",
) -> dict[str, Any]:
    """The whole answer as plain data; `branch` if the driver stands for one.

    `platform` is that of the images.

    Raises UsageError where no image works.
    """
    taken = f"branch {branch} is taken as {driver}: no driver of it is older" if branch else ""
    best = suggestions[0] if suggestions else None
    if best is None or not best.works:
        reasons = "; ".join(f"{s.image}: {s.reason}" for s in suggestions)
        reasons = reasons or "no CUDA version targets it"
        raise UsageError(f"no image runs on {gpu.name} with driver {driver}: {reasons}", taken)
    return {
        "gpu": gpu.name,
        "capability": str(gpu.capability),
        "geforce": gpu.geforce,
        "driver": driver,
        "branch": branch,
        "platform": platform.name,
        "image": best.image,
        "id": best.id,
        "run": command(best.image),
        "proof": best.proof,
        "why": [
            serving(gpu),
            best.reason,
            *([taken] if taken else []),
            f"this image is {best.proof}",
            *([CAVEATS[platform]] if platform in CAVEATS else []),
        ],
        "others": [
            {"image": s.image, "id": s.id, "works": s.works, "why": s.reason, "proof": s.proof}
            for s in suggestions
            if s is not best
        ],
    }


def judge(
    config: Config, cuda: Cuda, gpu: Gpu, driver: str, *, compat: str, platform: Platform, name: str
) -> Suggestion:
    """What the start of an image would choose on this GPU."""
    rules = _rules()
    releases = {
        c.version: rules.Release(c.version, c.driver, c.floor, c.repository)
        for c in (*cudas_for(config, platform), cuda)
    }
    image = releases.pop(cuda.version)
    device = rules.Device(gpu.name, rules.GEFORCE if gpu.geforce else rules.NVIDIA)
    host = rules.Host(driver=driver, library="libcuda.so.1", nodes=True, devices=(device,))
    library = None
    if compat:
        own = int(compat.partition(".")[0])
        note = rules.Note((*cuda.compat, own), rules.COMPAT_BRANDS)
        library = rules.Library("/opt/cuda-compat", compat, note)
    choice = rules.choose(host, image, library, tuple(releases.values()))
    natively = rules.newer_or_equal(driver, cuda.driver)
    return Suggestion(
        image=name,
        works=choice.works,
        rank=0 if natively else 1 if choice.library == rules.COMPAT else 2,
        reason=rules.sentence(choice, host, image, library),
    )


def _rules() -> Any:
    """The module that decides at the start of a container; it is no part of this package."""
    path = project_root() / "scripts" / "image" / "runtime" / "decision.py"
    name = "torch_images_decision"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    return sys.modules[name]
