"""The ledger, docs/ledger.csv: which images were really built and verified, and when.

`invoke build --stale` writes it, one line for each image. A line is valid as long as the image's
inputs are the same: the hash of its build context, which includes the locks. The image's digest
would not do, since each commit changes a label. A line can also say why a build failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch_images.build.plan import lock_image, plan_image
from torch_images.config.image import ImageSpec
from torch_images.config.matrix import of_the_project
from torch_images.config.types import Config
from torch_images.errors import LockError
from torch_images.jobs import Builder
from torch_images.platforms import ARM64
from torch_images.project import LEDGER
from torch_images.publish import gpu_ledger, records

if TYPE_CHECKING:  # it imports everything for builds
    from torch_images.publish.pipeline import Made

_FIELDS = {
    "image": records.IMAGE,
    "inputs": re.compile(r"[0-9a-f]{64}|"),
    "compat": re.compile(r"[0-9a-z.-]{1,40}|"),
    "lock": re.compile(r"[0-9a-f]{64}|"),
    "digest": re.compile(r"sha256:[0-9a-f]{64}|"),
    "date": records.DATE,
    "checks": re.compile(r"[0-9]{1,5}"),
    "machine": records.TEXT,
    "missing": records.TEXT,
}


# The end of `machine` if it ran the image in an emulator.
EMULATED = f", {ARM64} emulated"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A line of the ledger. Every field is text, as in the file.

    `image`: the identifier. `inputs`: the hash of its build context. `compat`: the version of its
    compat package, "" without one. `lock`: the hash of its locks. `digest`: its manifest's. `date`:
    the day (UTC). `checks`: how many passed. `machine`: the builder. `missing`: why it could not be
    built, "" for a proof; if it is set, inputs, lock and digest are "".
    """

    image: str
    inputs: str = ""
    compat: str = ""
    lock: str = ""
    digest: str = ""
    date: str
    checks: str = "0"
    machine: str
    missing: str = ""


@dataclass(frozen=True, kw_only=True)
class State:
    """Whether an image is tested, and a few words about it for people.

    `built`: whether it was ever built and verified, from any inputs.
    """

    tested: bool
    words: str
    built: bool = False


def read(root: Path) -> dict[str, Proof]:
    """The ledger of a project by identifier; {} if it is missing.

    Raises ConfigError, with the line, for text that `write` does not write.
    """
    lines = records.read(root, LEDGER, Proof, _FIELDS, lambda line: line.image)
    return {line.image: line for line in lines}


def write(root: Path, proofs: Mapping[str, Proof]) -> None:
    """Write the ledger, sorted by identifier, in one step."""
    records.write(root, LEDGER, Proof, [proofs[name] for name in sorted(proofs)])


def proof(made: Made, date: str, machine: Builder) -> Proof | None:
    """The line of an image that was built and verified on a day.

    None for an image that was not verified, or whose build resolved part of the lock itself: later
    nobody could tell whether its inputs are still the same.
    """
    plan, report = made.result.plan, made.report
    if report is None or not report.passed or plan.lock.unlocked:
        return None
    return Proof(
        image=plan.spec.id,
        inputs=plan.identity,
        compat=plan.lock.compat_version,
        lock=plan.lock.digest,
        digest=made.result.digest,
        date=date,
        checks=str(report.count("passed")),
        machine=_machine(machine) + (EMULATED if report.emulated else ""),
    )


def impossible(spec: ImageSpec, problem: str, date: str, machine: Builder) -> Proof:
    """The line of an image that could not be built: `problem` is the message of its error."""
    line = " ".join(problem.split()).replace("\x7f", "")
    return Proof(
        image=spec.id,
        date=date,
        machine=_machine(machine),
        missing="".join(c for c in line if c.isprintable())[:300],
    )


def states(
    config: Config,
    specs: Sequence[ImageSpec],
    proofs: Mapping[str, Proof],
    root: Path,
    locks: Path,
    *,
    runs: gpu_ledger.Runs | None = None,
) -> dict[ImageSpec, State]:
    """Whether each image is tested. `runs` is the GPU ledger.

    Renders only images with a line, which takes some ten milliseconds each.
    """
    on_gpus = runs or {}
    return {
        spec: _state(
            *(config, spec, proofs.get(spec.id), on_gpus.get(spec.id, ())), root=root, locks=locks
        )
        for spec in specs
    }


def _state(
    config: Config,
    spec: ImageSpec,
    line: Proof | None,
    runs: Sequence[gpu_ledger.GpuRun],
    *,
    root: Path,
    locks: Path,
) -> State:
    if line is None and not runs and not of_the_project(config, spec):
        return State(tested=False, words="not tested: not one of the project's images")
    if line is None and not runs:
        return State(tested=False, words="not tested: never built")
    if line and line.missing and not runs:
        return State(tested=False, words=f"not tested yet, tried on {line.date}: {line.missing}")
    try:
        image = lock_image(config, spec, locks)
    except LockError as error:
        return State(tested=False, words=f"not tested: {error.message}", built=True)
    inputs = plan_image(config, image, root).identity
    gpus = gpu_ledger.words(runs, inputs)
    if line is None or line.inputs != inputs:
        dates = [run.date for run in runs] + ([line.date] if line and line.inputs else [])
        words = f"last tested on {max(dates)}; its inputs have changed since"
        if gpus:
            words = f"tested on {gpus}"
        return State(tested=bool(gpus), words=words, built=True)
    where = ", in an emulator" if line.machine.endswith(EMULATED) else ""
    how = f", and on {gpus}" if gpus else " without a GPU"
    return State(tested=True, words=f"tested on {line.date}{how}{where}", built=True)


def _machine(builder: Builder) -> str:
    return f"{builder.cores} processors, {builder.memory / 1e9:.0f} GB"
