"""A GPU and a driver -> the image to run on them, and why. Pure.

The answer uses the module that decides at the start of a container, so both always agree.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version

from torch_images.build.limits import lacks, limits
from torch_images.config.choose import choose
from torch_images.config.combine import value
from torch_images.config.image import ImageSpec, options, short
from torch_images.config.matrix import of_the_project
from torch_images.config.tags import floating
from torch_images.config.types import WITH, Config, Cuda
from torch_images.errors import UsageError
from torch_images.inside import decision as rules
from torch_images.pick.drivers import Driver, remedy, unsupported
from torch_images.pick.gpus import CAVEATS, Gpu, find_gpu
from torch_images.platforms import Platform
from torch_images.verify.ledger import State

# What an answer has of each other image.
_OTHER = ("image", "reference", "id", "torch", "works", "proof")
_SERVICES = "its sshd and JupyterLab need a key, a password and ports: docs/pods.md"


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """One image for a GPU: whether it works there, and the reason, as a sentence.

    `image` is the name that a build gives it, `reference` its name in a registry, see `name`, `id`
    its identifier. `locked`: whether it can be built without `invoke lock`.
    `rank` orders those that work: natively, with NVIDIA's compat library, by minor-version
    compatibility. `compat`: whether the image has that library and uses it there. `proof` says in
    words whether the image was built and verified. `limits`: what fails on this GPU,
    or is not in the image; "" for nothing.
    """

    works: bool
    rank: int
    reason: str
    compat: bool = False
    image: str = ""
    reference: str = ""
    id: str = ""
    locked: bool = False
    torch: str = ""
    limits: str = ""
    proof: str = ""


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

    Images that work come first; then those that are locked, those ever built and verified, those
    in the catalogue, those with the lowest rank, and those for the newest CUDA. Images with the
    compat library are only among them where it helps.

    `driver` is a version, see drivers.py. `platform` is the host's, see `gpus.host_platform`.
    `compat` is the version of the compat library of a CUDA version for that platform, or "".
    `state` says whether an image is tested. `axes` are as for `choose_for_gpu`, which may raise.
    """
    judged: list[tuple[ImageSpec, Suggestion]] = []
    for spec in choose_for_gpu(config, gpu, platform, state, **axes):
        verdict = judge(spec.cuda, gpu, driver, compat=compat(spec.cuda))
        if not verdict.compat:
            judged.append((spec, verdict))
            continue
        own = {**axes, "cuda": spec.cuda.version, "compat": WITH, "platform": platform.name}
        judged.append((_choose(config, gpu, own, state), verdict))
        plain = judge(spec.cuda, gpu, driver)
        judged += [(spec, plain)] if plain.works else []

    def order(pair: tuple[ImageSpec, Suggestion]) -> tuple[bool | int, ...]:
        spec, verdict = pair
        listed, known = of_the_project(config, spec), state(spec)
        works, locked = verdict.works, bool(known.inputs)
        return not works, not locked, not known.built, not listed, verdict.rank

    return tuple(
        replace(
            verdict,
            image=f"{spec.repository}:{short(config, spec)}",
            reference=name(config, spec, namespace),
            id=spec.id,
            locked=bool(state(spec).inputs),
            torch=spec.torch,
            limits=_limits(spec, gpu),
            proof=state(spec).words,
        )
        for spec, verdict in sorted(judged, key=order)
    )


def _limits(spec: ImageSpec, gpu: Gpu) -> str:
    texts = [text for a in gpu.architectures for text in limits(spec).get(a.name, ())]
    needs = [_SERVICES] if spec.variant.ports else []
    return "; ".join(dict.fromkeys([*texts, *lacks(spec), *needs]))


def choose_for_gpu(
    config: Config,
    gpu: Gpu,
    platform: Platform,
    state: Callable[[ImageSpec], State],
    **axes: str,
) -> tuple[ImageSpec, ...]:
    """The images for a GPU and a platform, the newest CUDA first.

    `axes` has a variant, and may have a cuda, a torch and a base. Skips CUDA versions without a
    matching image. Raises UsageError if none is left, with the reason of the default CUDA version
    or of the newest one that has that torch, and for an unknown cuda, variant or base.
    """
    specs = []
    refused: list[tuple[Cuda, UsageError]] = []
    given = axes.get("cuda", "")
    for cuda in (value("cuda", config.cudas, given),) if given else config.cudas:
        if not {a.capability for a in gpu.architectures} <= {*cuda.targets}:
            continue
        try:
            own = {**axes, "cuda": cuda.version, "platform": platform.name}
            specs.append(_choose(config, gpu, own, state))
        except UsageError as error:
            refused.append((cuda, error))
    if refused and not specs:
        raise max(refused, key=lambda pair: _telling(config, pair[0], axes.get("torch", "")))[1]
    return tuple(sorted(specs, key=lambda spec: Version(spec.cuda.version), reverse=True))


def _choose(
    config: Config, gpu: Gpu, axes: Mapping[str, str], state: Callable[[ImageSpec], State]
) -> ImageSpec:
    """The image with these axes for a GPU.

    Candidates are the image for its architecture alone, then the whole image, if they are in the
    catalogue. First comes one that was tested on this GPU, then on one of its architecture, then
    without a GPU, then one that was built. Raises UsageError as `choose` does.
    """
    whole, arch = choose(config, **axes), ",".join(a.name for a in gpu.architectures)
    if not {*gpu.architectures} <= {*whole.architectures}:
        older = choose(config, **axes, arch=arch)
        if older.release.facts or axes.get("torch"):
            return older
        # That release was not inspected, so use the reason of the newest one.
        axes = {**axes, "torch": whole.release.version}
        return choose(config, **axes, arch=arch)
    with contextlib.suppress(UsageError):  # its code may be that of an older architecture
        one = choose(config, **axes, arch=arch)
        if len(one.architectures) > 1:
            return one
        listed = [spec for spec in (one, whole) if of_the_project(config, spec)] or [one]
        return min(listed, key=lambda spec: _proof(config, gpu, state(spec)))  # if equal, the first
    return whole


def _proof(config: Config, gpu: Gpu, state: State) -> tuple[bool, bool, bool, bool]:
    """A sort key: images with the best proof that they work on a GPU come first."""
    ran = []
    for name in state.gpus:
        with contextlib.suppress(UsageError):  # a GPU that images.yaml no longer names
            ran.append(find_gpu(config, name))
    model = any(other.name == gpu.name for other in ran)
    alike = any(other.architecture == gpu.architecture for other in ran)
    return not model, not alike, not state.tested, not state.built


def _telling(config: Config, cuda: Cuda, torch: str) -> tuple[bool, bool, Version]:
    """A sort key for how informative the refusal of a CUDA version is."""
    has = any(release == torch or release.startswith(f"{torch}.") for release in cuda.torch)
    return has or not torch, cuda.version == config.defaults.cuda, Version(cuda.version)


def name(config: Config, spec: ImageSpec, namespace: str) -> str:
    """The name of an image: its most specific floating tag in a registry."""
    return f"{namespace}/{spec.repository}:{floating(config, spec)[0]}"


def command(image: str) -> str:
    """The command that runs an image."""
    return f"docker run --rm --gpus all {image}"


def _arguments(config: Config, spec: ImageSpec, machine: Platform | None) -> tuple[str, ...]:
    """The options of `./inv build` for an image, without those that equal a default.

    The default of the platform is that of the machine.
    """
    given = spec.axes
    for axis in [axis for axis in given if axis not in ("cuda", "platform")]:
        fewer = {other: value for other, value in given.items() if other != axis}
        with contextlib.suppress(UsageError):
            if choose(config, **fewer) == spec:
                del given[axis]
    if spec.platform == machine:
        del given["platform"]
    return options(given)


def commands(
    config: Config,
    spec: ImageSpec,
    reference: str,
    *,
    published: bool = False,
    locked: bool = True,
    program: str = "./inv",
    machine: Platform | None = None,
) -> dict[str, Any]:
    """The command that works now, its parts, and the image that it runs.

    It locks what is not locked, and builds what may be unpublished. `reference` is the name in a
    registry, `program` this project's command as the user calls it. `machine` is the platform that
    builds, which is not named then; without it, the command is for any machine.
    """
    image = reference if published else f"{spec.repository}:{short(config, spec)}"
    parts = {
        "lock": "" if locked else f"{program} lock --select {spec.id}",
        "build": f"{program} build {shlex.join(_arguments(config, spec, machine))}",
        "run": command(image),
    }
    now = parts["run"] if published else " && ".join(filter(None, parts.values()))
    return {"command": now, "published": published, "image": image, **parts}


def serving(gpu: Gpu) -> str:
    """A sentence about a GPU, and the architecture whose code it runs if not its own."""
    kind = f"{gpu.architecture.family}{f', {gpu.line}' if gpu.line else ''}"
    capability = f"compute capability {gpu.capability}"
    text = f"{gpu.name} has {capability} ({kind})" if gpu.named else f"{capability} is {kind}"
    if gpu.capability != gpu.architecture.capability:
        text += f" and runs code for {gpu.architecture.name}"
    return text


def answer(
    config: Config,
    gpu: Gpu,
    driver: Driver,
    suggestions: Sequence[Suggestion],
    *,
    platform: Platform,
) -> dict[str, Any]:
    """The whole answer as plain data. `platform` is that of the images.

    Raises UsageError with the driver to install if no image works.
    """
    assumed = [driver.assumed] if driver.assumed else []
    if problem := unsupported(gpu, driver.version):
        raise UsageError("; ".join([problem, *assumed]), remedy(config, gpu))
    best = suggestions[0] if suggestions else None
    if best is None or not best.works:
        # The image for the oldest CUDA accepts the oldest driver.
        least = min(suggestions, key=lambda s: s.id, default=None)
        reason = f"{least.image}: {least.reason}" if least else "no CUDA version targets it"
        problem = f"no image runs on {gpu.title} with driver {driver.version}: {reason}"
        raise UsageError(problem, "; ".join([*assumed, remedy(config, gpu)]))
    return {
        "gpus": [
            {"name": g.name, "capability": str(g.capability), "geforce": g.geforce} for g in gpu.all
        ],
        "driver": driver.version,
        "branch": driver.branch,
        "platform": platform.name,
        "image": best.image,
        "reference": best.reference,
        "id": best.id,
        "locked": best.locked,
        "torch": best.torch,
        "proof": best.proof,
        "compat": best.compat,
        "why": [
            *map(serving, gpu.all),
            best.reason,
            *assumed,
            *([best.limits] if best.limits else []),
            *([CAVEATS[platform]] if platform in CAVEATS else []),
        ],
        "others": [
            {**{key: getattr(one, key) for key in _OTHER}, "why": one.reason}
            for one in suggestions
            # What works only after more steps helps nobody beside what works now.
            if one is not best and (one.locked >= best.locked or not one.works)
        ],
    }


def judge(cuda: Cuda, gpu: Gpu, driver: str, *, compat: str = "") -> Suggestion:
    """The choice that the start of an image would make on this GPU.

    `compat` is the version of its compat library, "" for an image without one.
    """
    if problem := unsupported(gpu, driver):
        return Suggestion(works=False, rank=0, reason=problem)
    image = rules.Release(cuda.version, cuda.driver, cuda.floor)
    devices = tuple(rules.Device(each.name, _brand(each)) for each in gpu.all)
    host = rules.Host(driver=driver, library="libcuda.so.1", nodes=True, devices=devices)
    library = None
    if compat:
        branch = int(compat.partition(".")[0])
        note = rules.Note((*cuda.compat, branch), rules.COMPAT_BRANDS)
        library = rules.Library("/opt/cuda-compat", compat, note)
    choice = rules.choose(host, image, library)
    helped = choice.library == rules.COMPAT
    reason = rules.sentence(choice, host, image, library)
    if helped and not gpu.named and gpu.architecture.geforce:
        reason += f"; not so on a GeForce: name it, such as {gpu.architecture.geforce[0]}"
    natively = rules.newer_or_equal(driver, cuda.driver)
    rank = 0 if natively else 1 if helped else 2
    return Suggestion(works=choice.works, rank=rank, reason=reason, compat=helped)


def _brand(gpu: Gpu) -> int:
    """The brand of a GPU as NVML reports it, if compat libraries depend on it; else NVIDIA."""
    brands = {name.upper(): number for number, name in rules.BRANDS.items()}
    return brands.get(gpu.line.upper(), rules.NVIDIA)
