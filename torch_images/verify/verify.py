"""A built image -> a report of its checks.

Suites check it, see suites.py: tests/image from outside, tests/container inside. They compare it
with one claim, derived from the matrix and the lock. The report is stored by digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch_images.build import labels
from torch_images.build.context_file import own_checks
from torch_images.build.job import Job
from torch_images.build.nvidia_require import COMPAT_FOLDER
from torch_images.build.plan import ImagePlan
from torch_images.build.render import ENTRYPOINT, WORKSPACE, environment
from torch_images.config.types import Config
from torch_images.errors import VerifyError
from torch_images.host import outputs
from torch_images.host.emulation import check_platform
from torch_images.host.gpus import Request
from torch_images.host.workspace import Workspace
from torch_images.jobs import Builder
from torch_images.locks.requirements import package_name
from torch_images.verify import compilers, ledger
from torch_images.verify.programs import Records
from torch_images.verify.suites import Check, Subject, examine, files_hash, suite_hash
from torch_images.verify.unchanged import unchanged

_GPU_MODULE = "container/test_gpu_"


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """The result of verifying one image. `suite` identifies the checks and their claim.

    `processor_seconds` is the time of all processors, without that of the engine itself. `emulated`
    says whether an emulator ran the image, because the machine has another processor. `programs`
    stands for tests/programs if all of it passed with this torch, see programs.py.
    """

    digest: str
    id: str
    suite: str
    checks: tuple[Check, ...]
    observed: Mapping[str, str]
    seconds: float
    processor_seconds: float = 0.0
    emulated: bool = False
    programs: str = ""

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.outcome == "failed")

    @property
    def skipped(self) -> tuple[Check, ...]:
        """The checks that were skipped: the image or the GPU lacks the feature."""
        return tuple(check for check in self.checks if check.outcome == "skipped")

    @property
    def passed(self) -> bool:
        """Whether checks ran and none failed."""
        return bool(self.checks) and not self.failed

    def count(self, outcome: str) -> int:
        """The number of checks with an outcome."""
        return sum(check.outcome == outcome for check in self.checks)


def claim(config: Config, plan: ImagePlan) -> dict[str, Any]:
    """The expected facts of an image, as the suites read them."""
    spec, lock = plan.spec, plan.lock
    facts = None if lock.trees else spec.release.facts
    return {
        "id": spec.id,
        "cuda": spec.cuda.version,
        "torch": lock.compiled.get("torch", f"{spec.torch}+{spec.cuda.short}"),
        "triton": lock.triton,
        "python": spec.base.python,
        "system": spec.base.system,
        "platform": spec.platform.name,
        "arches": [a.name for a in spec.architectures],
        "exact": list(spec.arches) if lock.trees else [],
        "narrowed": spec.narrowed,
        "arch_list": list(spec.arch_list),
        "lacks": {
            a.name: list(facts.lacking(a.capability)) if facts else [] for a in spec.architectures
        },
        "features": list(spec.features),
        "packages": {wheel.name: wheel.version for wheel in lock.all_wheels} | lock.compiled,
        "debian_packages": [*spec.base.packages, *spec.variant.packages],
        "debs": {deb.name: deb.version for deb in lock.all_debs},
        "cuda_home": spec.variant.cuda_home,
        "toolkit": [a.name for a in lock.toolkit.archives]
        if lock.toolkit and spec.variant.cuda_home
        else [],
        "locks": lock.texts(),
        "site_packages": f"/opt/venv/lib/python{spec.base.python}/site-packages",
        "labels": labels.write(config, plan),
        "environment": environment(spec, lock),
        "compat": f"{COMPAT_FOLDER}/{spec.cuda.version}" if spec.compat else "",
        "entrypoint": list(ENTRYPOINT),
        "command": list(spec.command),
        "ports": list(spec.variant.ports),
        "folder": spec.variant.folder or WORKSPACE,
        "unpacked": {
            wheel.name: {"version": wheel.version, "folder": extra.unpack}
            for extra, wheels in zip(spec.variant.unpacked, lock.unpacked, strict=True)
            for wheel in wheels.wheels
        },
        "lock_date": lock.date.isoformat(),
        "own_files": {
            file.path.removeprefix("own/files"): hashlib.sha256(file.data).hexdigest()
            for file in plan.context.files
            if file.path.startswith("own/files/")
        },
        "own_package": package_name(spec.own) if spec.own and lock.own_build else "",
        "own_checks": files_hash(own_checks(spec.own)) if spec.own else "",
    }


def verify(
    job: Job,
    image: str,
    plan: ImagePlan,
    *,
    reuse: bool = False,
    gpus: Sequence[Request] = (),
) -> VerifyReport:
    """Check an image, by tag or id, against its claim; also write the report to disk.

    With `gpus`, from `gpus.device_requests`, also run the checks that need a GPU. With `reuse`,
    return a passing report of the same digest, checks and claim instead. A job without cache uses
    nothing that is kept here: not the report, the lists of machine code of listings.py, nor the
    results of compilers.py. It also reads the files that unchanged.py would leave out.
    """
    workspace, engine, fresh = job.workspace, job.engine, job.options.no_cache
    job.shown.say(f"verifying {plan.spec.id}")
    started, used = time.monotonic(), _processor_seconds()
    info = engine.inspect(image)
    expected = claim(job.config, plan)
    suite = suite_hash(workspace.root, expected)
    path = report_path(workspace, info.id)
    if reuse and not fresh and (kept := read_report(path)) and kept.passed and kept.suite == suite:
        return kept
    machine = engine.platform()
    emulated = plan.spec.platform != machine
    if emulated and engine.local_root():
        check_platform(plan.spec.platform, machine=machine)
    passed = {line.programs for line in ledger.read(workspace.root)}
    records = Records(workspace, expected, machine, passed)
    compiled = compilers.record(plan, workspace) if emulated else None
    known = bool(compiled and compiled.exists() and not fresh)
    subject = Subject(
        job=job,
        info=info,
        claim=expected,
        gpus=gpus,
        emulated=emulated,
        unchanged=() if fresh else unchanged(info, workspace.cache, engine),
        known=compilers.CHECKS if known else (),
        own=plan.spec.own,
    )
    with job.shown.still(lambda: f"verifying {plan.spec.id}"):
        result = examine(subject, programs=records.missing())
    programs = [c for c in result.checks if c.name.startswith("programs/")]
    failed = {c.name.split("/")[1] for c in programs if c.outcome == "failed"}
    for module in {c.name.split("/")[1] for c in programs} - failed:
        records.keep(f"{module}.py", info.id)
    report = VerifyReport(
        digest=info.id,
        id=plan.spec.id,
        suite=suite,
        checks=(*result.checks, *(compilers.left_out(compiled) if compiled and known else ())),
        observed=result.observed,
        seconds=round(time.monotonic() - started, 1),
        processor_seconds=round(_processor_seconds() - used + result.processor_seconds, 1),
        emulated=emulated,
        programs="" if records.missing() else records.identity,
    )
    write_report(report, workspace)
    if compiled and not known:
        compilers.keep(compiled, info.id, passed=report.passed)
    return report


def line_of(
    plan: ImagePlan, report: VerifyReport, *, commit: str, date: str, machine: Builder
) -> ledger.Line | None:
    """The ledger's line of an image that passed its checks on a day.

    None if a check failed, and if the report has GPUs on which no check ran. None if the build
    resolved part of the lock itself: nobody could tell later whether its inputs are still the same.
    None if its layers are packed small: the same inputs have another digest without.
    """
    checks = [check for check in report.checks if check.outcome == "passed"]
    gpus = report.observed.get("gpus", "")
    on_gpu = sum(check.name.startswith(_GPU_MODULE) for check in checks)
    if not report.passed or plan.lock.unlocked or plan.small or (gpus and not on_gpu):
        return None
    return ledger.Line(
        image=plan.spec.id,
        inputs=plan.identity,
        digest=report.digest,
        commit=commit,
        date=date,
        checks=len(checks),
        on_gpu=on_gpu if gpus else None,
        skipped=report.count("skipped"),
        machine=ledger.described(machine) + (ledger.EMULATED if report.emulated else ""),
        gpus=gpus,
        driver=report.observed.get("driver", ""),
        programs=report.programs,
    )


def _processor_seconds() -> float:
    """Seconds of processor of this process, and of its children that have ended."""
    return sum(os.times()[:4])


def require(report: VerifyReport, workspace: Workspace) -> None:
    """Raise VerifyError with the failed checks, unless the report is a pass."""
    if report.passed:
        return
    names = [check.name for check in report.failed]
    shown = 5
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    first = report.failed[0].message if report.failed else "no check ran"
    path, here = report_path(workspace, report.digest), Path.cwd()
    # Short, since the line of an error is cut at its length.
    path = path.relative_to(here) if path.is_relative_to(here) else path
    raise VerifyError(
        f"{report.id} failed verification: {', '.join(names[:shown])}{more}: {first[:300]}",
        f"the whole report is {path}",
    )


def report_path(workspace: Workspace, digest: str) -> Path:
    """The file of an image's report."""
    return workspace.output / "reports" / f"{digest.replace(':', '-')}.json"


def write_report(report: VerifyReport, workspace: Workspace) -> None:
    """Write a report to the file of its image."""
    text = json.dumps({**asdict(report), "passed": report.passed}, indent=2) + "\n"
    outputs.write(report_path(workspace, report.digest), text)


def read_report(path: Path) -> VerifyReport | None:
    """The report in a file; None if it is missing or this version cannot read it."""
    try:
        data = json.loads(path.read_bytes())
        del data["passed"]
        checks = tuple(Check(**check) for check in data.pop("checks"))
        return VerifyReport(checks=checks, **data)
    except (OSError, ValueError, KeyError, TypeError):
        return None
