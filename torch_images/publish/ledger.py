"""The ledger, docs/ledger.csv: which images were really built and verified, and when.

`invoke build --stale` writes it, one line for each image. A line is valid as long as the image's
inputs are the same: the hash of its build context, which includes the locks. The image's digest
would not do, since each commit changes a label. A line can also say why a build failed.
"""

from __future__ import annotations

import csv
import io
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch_images.build.plan import lock_image, plan_image
from torch_images.config.image import ImageSpec
from torch_images.config.matrix import of_the_project
from torch_images.config.types import Config
from torch_images.errors import ConfigError, LockError, shown
from torch_images.jobs import Builder
from torch_images.platforms import ARM64
from torch_images.project import LEDGER

if TYPE_CHECKING:  # it imports everything for builds
    from torch_images.publish.pipeline import Made

_LARGEST = 4 << 20  # bytes; a line has some 400
_TEXT = re.compile(r"[^\x00-\x1f\x7f]{0,300}")
_FIELDS = {
    "image": re.compile(r"cu[0-9]{3}-[a-z0-9._-]{1,120}"),
    "inputs": re.compile(r"[0-9a-f]{64}|"),
    "compat": re.compile(r"[0-9a-z.-]{1,40}|"),
    "lock": re.compile(r"[0-9a-f]{64}|"),
    "digest": re.compile(r"sha256:[0-9a-f]{64}|"),
    "date": re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "checks": re.compile(r"[0-9]{1,5}"),
    "machine": _TEXT,
    "missing": _TEXT,
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

    `built`: whether it was ever built and verified, from any inputs. `compat`: whether that image
    had its compat library.
    """

    tested: bool
    words: str
    built: bool = False
    compat: bool = False


def read(root: Path) -> dict[str, Proof]:
    """The ledger of a project by identifier; {} if it is missing.

    Raises ConfigError, with the line, for text that `write` does not write.
    """
    path = root / LEDGER
    if not path.exists():
        return {}
    text = path.read_bytes()[:_LARGEST].decode("utf-8", "replace")
    names = [field.name for field in fields(Proof)]
    proofs: dict[str, Proof] = {}
    try:
        rows = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise ConfigError(f"{LEDGER}: not a CSV file: {error}", "restore it from git") from None
    for number, row in enumerate(rows, 1):
        if number == 1 and row == names:
            continue
        wrong = [n for n, value in zip(names, row, strict=False) if not _FIELDS[n].fullmatch(value)]
        if number == 1 or len(row) != len(names) or wrong or row[0] in proofs:
            problem = f"not a line of the ledger: {shown(','.join(row))}"
            raise ConfigError(f"{LEDGER}:{number}: {problem}", "restore it from git")
        proofs[row[0]] = Proof(**dict(zip(names, row, strict=True)))
    return proofs


def write(root: Path, proofs: Mapping[str, Proof]) -> None:
    """Write the ledger, sorted by identifier, in one step."""
    path = root / LEDGER
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=".ledger-", delete=False, newline="", encoding="utf-8"
    ) as file:
        names = [field.name for field in fields(Proof)]
        rows = csv.DictWriter(file, names, lineterminator="\n")
        rows.writeheader()
        rows.writerows(asdict(proofs[name]) for name in sorted(proofs))
    os.chmod(file.name, 0o644)  # noqa: PTH101  beside os.replace
    os.replace(file.name, path)


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
    config: Config, specs: Sequence[ImageSpec], proofs: Mapping[str, Proof], root: Path, locks: Path
) -> dict[ImageSpec, State]:
    """Whether each image is tested.

    Renders only images with a line, which takes some ten milliseconds each.
    """
    return {spec: _state(config, spec, proofs.get(spec.id), root, locks) for spec in specs}


def _state(config: Config, spec: ImageSpec, line: Proof | None, root: Path, locks: Path) -> State:
    if line is None and not of_the_project(config, spec):
        return State(tested=False, words="not tested: not one of the project's images")
    if line is None:
        return State(tested=False, words="not tested: never built")
    if line.missing:
        return State(tested=False, words=f"not tested yet, tried on {line.date}: {line.missing}")
    try:
        image = lock_image(config, spec, locks)
    except LockError as error:
        words = f"not tested: {error.message}"
        return State(tested=False, words=words, built=True, compat=bool(line.compat))
    lacks = bool(image.lock.compat) and not line.compat
    if not line.compat:
        image = replace(image, lock=replace(image.lock, compat=None))
    if plan_image(config, image, root).identity != line.inputs:
        words = f"last tested on {line.date}; its inputs have changed since"
        return State(tested=False, words=words, built=True, compat=bool(line.compat))
    without = "; forward compatibility untested" if lacks else ""
    where = ", in an emulator" if line.machine.endswith(EMULATED) else ""
    words = f"tested on {line.date} without a GPU{where}{without}"
    return State(tested=True, words=words, built=True, compat=bool(line.compat))


def _machine(builder: Builder) -> str:
    return f"{builder.cores} processors, {builder.memory / 1e9:.0f} GB"
