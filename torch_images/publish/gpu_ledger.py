"""The GPU ledger, docs/gpu-ledger.csv: which images passed their checks on which GPUs, and when.

`invoke verify IMAGE --gpus all --record` writes it, one line for each image and kind of GPU. As in
the ledger, a line is valid as long as the image's inputs are the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch_images.project import GPU_LEDGER
from torch_images.publish import records

if TYPE_CHECKING:  # it imports what verification needs
    from torch_images.build.plan import ImagePlan
    from torch_images.verify.verify import VerifyReport

_FIELDS = {
    "image": records.IMAGE,
    "inputs": re.compile(r"[0-9a-f]{64}"),
    "digest": re.compile(r"sha256:[0-9a-f]{64}"),
    "date": records.DATE,
    "gpus": re.compile(r"[1-9][0-9]{0,3} x [^\x00-\x1f\x7f]{1,300}"),
    "driver": re.compile(r"[0-9.]{3,30}"),
    "passed": re.compile(r"[1-9][0-9]{0,4}"),
    "on_gpu": re.compile(r"[1-9][0-9]{0,4}"),
    "skipped": re.compile(r"[0-9]{1,5}"),
}
_GPU_MODULE = "container/test_gpu_"


@dataclass(frozen=True, kw_only=True)
class GpuRun:
    """A line of the GPU ledger. Every field is text, as in the file.

    `image`, `inputs`, `digest`, `date`: as in the ledger. `gpus`: their number and name, such as "2
    x NVIDIA H100 80GB HBM3". `driver`: its version. `passed`: the number of checks that passed,
    `on_gpu`: of these, those that need a GPU. `skipped`: the number of others; none failed.
    """

    image: str
    inputs: str
    digest: str
    date: str
    gpus: str
    driver: str
    passed: str
    on_gpu: str
    skipped: str


Runs = Mapping[str, Sequence[GpuRun]]


def read(root: Path) -> dict[str, list[GpuRun]]:
    """The GPU ledger of a project by image, the newest run of each first; {} if it is missing.

    Raises ConfigError, with the line, for text that `add` does not write.
    """
    found: dict[str, list[GpuRun]] = {}
    for run in _read(root):
        found.setdefault(run.image, []).append(run)
    for runs in found.values():
        runs.sort(key=lambda run: run.date, reverse=True)
    return found


def add(root: Path, run: GpuRun) -> None:
    """Write a line into the GPU ledger, in place of an earlier one of this image and these GPUs."""
    others = [old for old in _read(root) if (old.image, old.gpus) != (run.image, run.gpus)]
    lines = sorted([*others, run], key=lambda line: (line.image, line.gpus))
    records.write(root, GPU_LEDGER, GpuRun, lines)


def run_of(plan: ImagePlan, report: VerifyReport, date: str) -> GpuRun | None:
    """The line of an image that passed its checks on GPUs on a day.

    None for a report without a check on a GPU or with a failed one, and for
    an image whose build resolved part of the lock itself.
    """
    gpus, driver = report.observed.get("gpus", ""), report.observed.get("driver", "")
    if not (gpus and driver and report.passed) or plan.lock.unlocked:
        return None
    passed = [check for check in report.checks if check.outcome == "passed"]
    on_gpu = sum(check.name.startswith(_GPU_MODULE) for check in passed)
    if not on_gpu:
        return None
    return GpuRun(
        image=plan.spec.id,
        inputs=plan.identity,
        digest=report.digest,
        date=date,
        gpus="".join(c for c in gpus if c.isprintable())[:300],
        driver=driver,
        passed=str(len(passed)),
        on_gpu=str(on_gpu),
        skipped=str(report.count("skipped")),
    )


def words(runs: Sequence[GpuRun], inputs: str) -> str:
    """Which GPUs an image with these inputs passed its checks on; "" for none."""
    return ", ".join(
        f"{run.gpus.removeprefix('1 x ')} on {run.date}" for run in runs if run.inputs == inputs
    )


def _read(root: Path) -> list[GpuRun]:
    return records.read(root, GPU_LEDGER, GpuRun, _FIELDS, lambda run: (run.image, run.gpus))
