"""The ledger, docs/ledger.csv: which images passed their checks, on which machine and GPUs.

`invoke build --stale` writes a line for each image, `invoke verify IMAGE --record` one for an image
and, with `--gpus all`, its kind of GPU. An image is tested if a line has exactly its inputs of
today: the hash of its build context, which includes the locks.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import zstandard

from torch_images.config.image import ImageSpec
from torch_images.config.matrix import of_the_project
from torch_images.config.types import Config
from torch_images.errors import LockError, VerifyError
from torch_images.host import cache, outputs
from torch_images.host.workspace import default_cache
from torch_images.jobs import Builder
from torch_images.platforms import ARM64
from torch_images.project import LEDGER, PACKAGE

# The end of `machine` if it ran the image in an emulator.
EMULATED = f", {ARM64} emulated"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the ledger: an image that passed its checks, or could not be built.

    `inputs`: the hash of its build context. `commit`: the project's commit that it was built from,
    see `build.revision`. `date`: the day (UTC). `checks`: how many passed; `on_gpu`: of these,
    those that need a GPU; None if unknown. `machine`: its processors and memory. `gpus`: number and
    name, e.g. "2 x NVIDIA H100 80GB HBM3", and `driver`: its version; both are "" for a run without
    GPUs. `missing`: why the image could not be built, "" if it was. `programs`:
    with which torch, Python and system tests/programs passed, see programs.py; "" if unknown.
    """

    image: str
    inputs: str = ""
    digest: str = ""
    commit: str = ""
    date: str
    checks: int | None = None
    on_gpu: int | None = None
    skipped: int | None = None
    machine: str = ""
    gpus: str = ""
    driver: str = ""
    missing: str = ""
    programs: str = ""


@dataclass(frozen=True, kw_only=True)
class State:
    """Whether an image is tested, and a few words about it for people.

    `built`: whether it ever passed its checks, with any inputs. `inputs`: those of today, "" if a
    lock is missing. `gpus`: the GPUs on which these inputs passed, e.g. "2 x NVIDIA T4".
    """

    tested: bool
    words: str
    built: bool = False
    inputs: str = ""
    gpus: tuple[str, ...] = ()


_NUMBERS = ("checks", "on_gpu", "skipped")


def read(root: Path) -> tuple[Line, ...]:
    """The ledger of a project; () if it is missing."""
    path = root / LEDGER
    if not path.exists():
        return ()
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(_line(row) for row in csv.DictReader(file))


def _line(row: dict[str, Any]) -> Line:
    counts = {name: int(row[name]) if row[name] else None for name in _NUMBERS}
    return Line(**{**row, **counts})


def commit_of(root: Path, inputs: str) -> str:
    """The commit that an image with these inputs ("sha256:...") was built from; "" if unknown.

    One without uncommitted files is preferred.
    """
    lines = (line for line in read(root) if line.commit and f"sha256:{line.inputs}" == inputs)
    return min((line.commit for line in lines), key=lambda c: c.endswith("-dirty"), default="")


def write(root: Path, lines: Iterable[Line]) -> None:
    """Write the ledger, sorted by image and GPUs, in one step."""
    text = io.StringIO()
    rows = csv.DictWriter(text, [field.name for field in fields(Line)], lineterminator="\n")
    rows.writeheader()
    rows.writerows(asdict(each) for each in sorted(lines, key=_key))
    outputs.write(root / LEDGER, text.getvalue())


def add(root: Path, line: Line) -> None:
    """Write a line, in place of an earlier one of the same image and GPUs.

    Raises VerifyError if the ledger has another digest for these inputs.
    """
    lines = read(root)
    for old in lines if line.digest else ():
        if old.inputs == line.inputs and old.digest not in ("", line.digest):
            raise VerifyError(
                f"{line.image} is not recorded: it is {line.digest}, but {LEDGER} has {old.digest} "
                "for the same inputs",
                f"`invoke reproduce {line.image}` shows which files differ from build to build",
            )
    write(root, [*(old for old in lines if _key(old) != _key(line)), line])


def _key(line: Line) -> tuple[str, str]:
    return line.image, line.gpus


def reader(
    config: Config, lines: Sequence[Line], root: Path, locks: Path
) -> Callable[[ImageSpec], State]:
    """A function that says whether an image is tested.

    Rendering takes milliseconds for each image. So the cache keeps what it gave for the same
    configuration, files and packages; not for a user's project, which has files of its own.
    """
    file = default_cache() / cache.Part.INPUTS / f"{_source(config, root, locks)}.json"
    known: dict[str, tuple[str, str]] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(file.read_bytes())
        cache.used(file)

    @functools.cache
    def state(spec: ImageSpec) -> State:
        inputs = None if spec.own else known.get(spec.id)
        if not inputs:
            inputs = _inputs(config, spec, root, locks)
            if not spec.own:
                known[spec.id] = inputs
                with contextlib.suppress(OSError):
                    outputs.write(file, json.dumps(known))
        return _state(config, spec, [line for line in lines if line.image == spec.id], *inputs)

    return state


def _source(config: Config, root: Path, locks: Path) -> str:
    """SHA-256 in hexadecimal of all that rendering depends on."""
    # Names in site-packages, where this package is like the others, have their versions.
    packages = sorted(Path(zstandard.__file__).parents[1].iterdir())
    digest = hashlib.sha256(f"{sys.version} {packages} {config}".encode())
    for top in (PACKAGE, root / "docker", root / "scripts" / "image", locks):
        for folder, _, names in sorted(os.walk(top)):
            for path in (Path(folder, name) for name in sorted(names)):
                if path.suffix != ".pyc" and path.is_file():
                    data = path.read_bytes()
                    digest.update(f"{path} {len(data)} ".encode() + data)
    return digest.hexdigest()


def _inputs(config: Config, spec: ImageSpec, root: Path, locks: Path) -> tuple[str, str]:
    """The hash of an image's inputs, "" if a lock is missing, and then why."""
    from torch_images.build.plan import lock_image, plan_image

    try:
        return plan_image(config, lock_image(config, spec, locks), root).identity, ""
    except LockError as error:
        return "", error.message


def _state(
    config: Config, spec: ImageSpec, lines: Sequence[Line], inputs: str, problem: str
) -> State:
    proofs = [line for line in lines if not line.missing]
    current = [line for line in proofs if inputs and line.inputs == inputs]
    if current:
        gpus = tuple(name for line in current for name in line.gpus.split(", ") if name)
        return State(tested=True, words=_tested(current), built=True, inputs=inputs, gpus=gpus)
    if failed := next((line for line in lines if line.missing), None):
        words = f"not tested: could not be built on {failed.date}: {failed.missing}"
    elif not lines and not of_the_project(config, spec):
        words = "not tested: not one of the project's images"
    elif problem:
        words = f"not tested: {problem}"
    elif proofs:
        newest = max(line.date for line in proofs)
        words = f"last tested on {newest}; its inputs have changed since"
    else:
        words = "not tested: never built"
    return State(tested=False, words=words, built=bool(proofs), inputs=inputs)


def _tested(current: Sequence[Line]) -> str:
    """Where an image passed: "tested on 2026-11-27, and on NVIDIA H200, driver 580.65.06"."""
    runs = sorted((line for line in current if line.gpus), key=lambda line: line.date)
    gpus = ", ".join(f"{line.gpus.removeprefix('1 x ')}, driver {line.driver}" for line in runs)
    without = next((line for line in current if not line.gpus), None)
    if not without:
        return f"tested on {gpus}"
    where = ", in an emulator" if without.machine.endswith(EMULATED) else ""
    how = f", and on {gpus}" if gpus else " without a GPU"
    return f"tested on {without.date}{how}{where}"


def described(machine: Builder) -> str:
    """The machine in a line of the ledger."""
    return f"{machine.cores} processors, {machine.memory / 1e9:.0f} GB"
