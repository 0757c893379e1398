"""A built image -> proof or refusal.

Two suites look at it: tests/image from outside with testinfra, tests/container inside with pytest,
which is copied into the container and never into the image. Both compare with one claim, derived
from the matrix and the lock. The report is kept by digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from torch_images.build import labels
from torch_images.build.nvidia_require import COMPAT_FOLDER
from torch_images.build.plan import ImagePlan
from torch_images.build.render import ENTRYPOINT, whole_environment
from torch_images.config.types import Config
from torch_images.errors import TorchImagesError, VerifyError
from torch_images.fetch.tools import install_tools
from torch_images.host.emulation import check_platform
from torch_images.host.engine import Engine, RunningContainer
from torch_images.host.gpus import Request
from torch_images.host.image_info import ImageInfo
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.project import PACKAGE
from torch_images.verify.listings import listings

_INSIDE = "/verify"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check: `outcome` is passed, failed or skipped; `message` says why it is not passed."""

    name: str
    outcome: str
    seconds: float
    message: str = ""


# What a suite found: its checks, and facts by name.
Found = tuple[tuple[Check, ...], dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What was found out about one image. `suite` identifies the checks and the claim they used.

    `emulated` is whether an emulator ran the image, because the machine has another processor.
    """

    digest: str
    id: str
    suite: str
    checks: tuple[Check, ...]
    observed: Mapping[str, str]
    seconds: float
    emulated: bool = False

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.outcome == "failed")

    @property
    def skipped(self) -> tuple[Check, ...]:
        """The checks that were skipped: by what the image is not, or a GPU cannot."""
        return tuple(check for check in self.checks if check.outcome == "skipped")

    @property
    def passed(self) -> bool:
        """Whether the image is what it claims to be."""
        return bool(self.checks) and not self.failed

    def count(self, outcome: str) -> int:
        """How many checks ended so."""
        return sum(check.outcome == outcome for check in self.checks)


def claim(config: Config, plan: ImagePlan, note: str) -> dict[str, Any]:
    """What an image claims to be, as the suites read it.

    `note` is what its label says of its compat library, "" for none: a check holds that against the
    library itself.
    """
    spec, lock = plan.spec, plan.lock
    return {
        "id": spec.id,
        "cuda": spec.cuda.version,
        "torch": lock.compiled.get("torch", f"{spec.torch}+{spec.cuda.short}"),
        "triton": lock.triton,
        "python": spec.base.python,
        "system": spec.base.system,
        "platform": spec.platform.name,
        "arches": [a.name for a in spec.architectures],
        "exact": list(spec.arches) if lock.sources else [],
        "pruned": spec.prune and not lock.sources,
        "features": list(spec.features),
        "packages": {wheel.name: wheel.version for wheel in lock.all_wheels} | lock.compiled,
        "debian_packages": [*spec.base.packages, *spec.variant.packages],
        "debs": {deb.name: deb.version for deb in lock.all_debs},
        "cuda_home": spec.variant.cuda_home,
        "toolkit": [a.name for a in lock.toolkit.archives]
        if lock.toolkit and spec.variant.cuda_home
        else [],
        "bootstrapped": not lock.base.image,
        "locks": lock.texts(),
        "site_packages": f"/opt/venv/lib/python{spec.base.python}/site-packages",
        "labels": labels.write(config, plan),
        "environment": whole_environment(spec, note),
        "compat": f"{COMPAT_FOLDER}/{spec.cuda.version}" if lock.compat else "",
        "compat_note": note,
        "entrypoint": list(ENTRYPOINT),
        "command": [spec.variant.command],
        "ports": list(spec.variant.ports),
        "folder": spec.variant.folder,
        "unpacked": {
            wheel.name: {"version": wheel.version, "folder": extra.unpack}
            for extra, held in zip(spec.variant.unpacked, lock.unpacked, strict=True)
            for wheel in held.wheels
        },
        "lock_date": lock.date.isoformat(),
    }


def claim_of(config: Config, plan: ImagePlan, info: ImageInfo) -> dict[str, Any]:
    """The claim of an image in the engine, whose label has the note."""
    return claim(config, plan, labels.read(info.labels).compat_note)


def verify(
    image: str,
    config: Config,
    plan: ImagePlan,
    workspace: Workspace,
    *,
    engine: Engine,
    run: Runner,
    reuse: bool = False,
    gpus: Sequence[Request] = (),
) -> VerifyReport:
    """Check an image, by tag or id, against its claim; the report is also written to disk.

    With `gpus`, what `gpus.device_requests` gives, also what needs a GPU. With `reuse`, a passing
    report of the same digest, checks and claim is taken instead.
    """
    started = time.monotonic()
    info = engine.inspect(image)
    wanted = claim_of(config, plan, info)
    suite = suite_hash(workspace.root, wanted)
    path = report_path(workspace, info.id)
    if reuse and (kept := read_report(path)) and kept.passed and kept.suite == suite:
        return kept
    own = engine.platform()
    emulated = plan.spec.platform != own
    if emulated and engine.local_root():
        check_platform(plan.spec.platform, machine=own)
    checks, observed = examine(
        info, wanted, workspace, engine=engine, run=run, gpus=gpus, emulated=emulated
    )
    report = VerifyReport(
        digest=info.id,
        id=plan.spec.id,
        suite=suite,
        checks=checks,
        observed=observed,
        seconds=round(time.monotonic() - started, 1),
        emulated=emulated,
    )
    write_report(report, workspace)
    return report


def examine(
    info: ImageInfo,
    wanted: Mapping[str, Any],
    workspace: Workspace,
    *,
    engine: Engine,
    run: Runner,
    gpus: Sequence[Request] = (),
    modules: Collection[str] = (),
    emulated: bool = False,
) -> Found:
    """Run both suites on an image, or some of their `modules`, such as "image/test_files".

    `wanted` is the image's claim, `gpus` as for `verify`. In an `emulated` image, what only a real
    processor shows is skipped, with the reason, and its machine code is listed from outside. What
    some modules find is no proof: only `verify` makes a report.
    """
    # NCCL's processes talk through shared memory, of which Docker gives 64 MB.
    options = {"device_requests": list(gpus), "shm_size": "2g"} if gpus else {}

    def outside() -> Found:
        chosen = _chosen(modules, "image")
        if modules and not chosen:
            return (), {}
        with engine.container(info.id, network_mode="none", **options) as container:
            return _outside(
                container, info, wanted, workspace, run, modules=chosen, emulated=emulated
            )

    def inside() -> Found:
        chosen = _chosen(modules, "container")
        if modules and not chosen:
            return (), {}
        with engine.container(info.id, network_mode="none", **options) as container:
            return _inside(
                container,
                wanted,
                workspace,
                run,
                modules=chosen,
                gpus=bool(gpus),
                emulated=emulated,
            )

    # Side by side, each in a container of its own: what one leaves is no business of the other.
    with ThreadPoolExecutor(1) as beside:
        first = beside.submit(outside)
        if gpus:
            wait([first])  # a GPU can be set to serve one process only
        within = inside()
        results = (first.result(), within)
    return (
        tuple(check for checks, _ in results for check in checks),
        {name: value for _, facts in results for name, value in facts.items()},
    )


def require(report: VerifyReport) -> None:
    """Raise VerifyError, naming the failed checks, unless the report is a pass."""
    if report.passed:
        return
    names = [check.name for check in report.failed]
    shown = 5
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    first = report.failed[0].message if report.failed else "no check ran"
    raise VerifyError(
        f"{report.id} failed verification: {', '.join(names[:shown])}{more}: {first[:300]}",
        f"the whole report is build/reports/{report.digest.replace(':', '-')}.json",
    )


def report_path(workspace: Workspace, digest: str) -> Path:
    """Where the report of an image is kept."""
    return workspace.output / "reports" / f"{digest.replace(':', '-')}.json"


def write_report(report: VerifyReport, workspace: Workspace) -> None:
    """Keep a report by the image's digest."""
    path = report_path(workspace, report.digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({**asdict(report), "passed": report.passed}, indent=2) + "\n")
    os.replace(partial, path)


def read_report(path: Path) -> VerifyReport | None:
    """The report in a file; None where there is none that this version can read."""
    try:
        data = json.loads(path.read_text())
        del data["passed"]
        checks = tuple(Check(**check) for check in data.pop("checks"))
        return VerifyReport(checks=checks, **data)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def suite_hash(root: Path, wanted: Mapping[str, Any]) -> str:
    """SHA-256 of checks and expected values; a report is valid only for this hash."""
    digest = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode())
    for name, data in sorted({**_files(root, "tests/image"), **_suite_files(root)}.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def parse_junit(text: str, prefix: str) -> Found:
    """The checks and observed facts in a JUnit XML report of pytest."""
    checks: list[Check] = []
    observed: dict[str, str] = {}
    for case in ET.fromstring(text).iter("testcase"):
        module = case.get("classname", "").rpartition(".")[2]
        host = r"docker://[0-9a-f]+-|-?docker://[0-9a-f]+"
        case_name = re.sub(host, "", case.get("name", "")).replace("[]", "")
        name = f"{prefix}/{module}/{case_name}"
        problem = next((e for tag in ("failure", "error") for e in case.iter(tag)), None)
        skipped = case.find("skipped")
        outcome = (
            "failed" if problem is not None else "skipped" if skipped is not None else "passed"
        )
        note = problem if problem is not None else skipped
        message = " ".join((note.get("message") or "").split()) if note is not None else ""
        seconds = round(float(case.get("time", "0")), 3)
        checks.append(Check(name=name, outcome=outcome, seconds=seconds, message=message))
        for fact in case.iter("property"):
            observed[fact.get("name", "")] = fact.get("value", "")
    return tuple(checks), observed


def _outside(
    container: RunningContainer,
    info: ImageInfo,
    wanted: Mapping[str, Any],
    workspace: Workspace,
    run: Runner,
    *,
    modules: Sequence[str],
    emulated: bool,
) -> Found:
    with tempfile.TemporaryDirectory() as scratch:
        expected, report = Path(scratch, "expected.json"), Path(scratch, "report.xml")
        facts = {
            **wanted,
            "inspect": dict(info.config),
            "created": info.created,
            "runs": info.platform,
        }
        expected.write_text(json.dumps(facts))
        suite = workspace.root / "tests" / "image"
        command = [sys.executable, "-m", "pytest", *(str(suite / m) for m in modules or ("",))]
        command += [f"--hosts=docker://{container.id}", f"--junitxml={report}", "-q"]
        command += ["-p", "no:cacheprovider", f"--rootdir={workspace.root}"]
        command += ["-o", "junit_family=xunit1"]  # the one that can hold observed facts
        env: dict[str, str | None] = {"TORCH_IMAGES_EXPECTED": str(expected)}
        env |= {"PYTEST_ADDOPTS": None, "TORCH_IMAGES_EMULATED": "1" if emulated else None}
        done = run.run(command, env=env, cwd=workspace.root, check=False)
        if not report.exists() or done.code > 1:
            raise TorchImagesError(f"the outside checks did not run: {done.output[-400:]}")
        return parse_junit(report.read_text(), "image")


def _inside(
    container: RunningContainer,
    wanted: Mapping[str, Any],
    workspace: Workspace,
    run: Runner,
    *,
    modules: Sequence[str],
    gpus: bool,
    emulated: bool,
) -> Found:
    site = install_tools("tools-verify", workspace, run)
    container.exec("mkdir", "-p", _INSIDE)
    files = {f"site/{name}": data for name, data in _files(site, ".").items()}
    files |= {f"suite/{name}": data for name, data in _suite_files(workspace.root).items()}
    files["expected.json"] = json.dumps(wanted).encode()
    if emulated:
        lists = listings(container, str(wanted["site_packages"]), workspace, run)
        files |= {f"listings/{name}": data for name, data in lists.items()}
    container.put(_INSIDE, files)
    env = {
        "PYTHONPATH": f"{_INSIDE}/site:{_INSIDE}/suite",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TORCH_IMAGES_EXPECTED": f"{_INSIDE}/expected.json",
        # In an emulator, threads that wait for each other take all the time.
        **({"TORCH_IMAGES_EMULATED": "1", "OMP_NUM_THREADS": "1"} if emulated else {}),
        "TORCH_IMAGES_LISTINGS": f"{_INSIDE}/listings",
    }
    report = f"{_INSIDE}/report.xml"
    suite = f"{_INSIDE}/suite/tests/container"
    command = ["python", "-m", "pytest", *(f"{suite}/{m}" for m in modules or ("",)), "-q"]
    command += [f"--junitxml={report}", *([] if gpus else ["-m", "not gpu"])]
    # On a GPU, with what the start gives a command: the libcuda it chose, and the profile.
    done = container.exec(*(["torch-entrypoint"] if gpus else []), *command, env=env)
    if done.code > 1:
        raise TorchImagesError(f"the checks inside the image did not run: {done.output[-400:]}")
    return parse_junit(container.read(report).decode(), "container")


def _chosen(modules: Collection[str], suite: str) -> list[str]:
    """The files of those modules that belong to a suite."""
    named = (module.partition("/") for module in modules)
    return [f"{name}.py" for part, _, name in named if part == suite]


def _suite_files(root: Path) -> dict[str, bytes]:
    """What goes into the container: checks, benchmark cases, and the judge of architectures."""
    files = {**_files(root, "tests/container"), **_files(root, "scripts/bench")}
    for name in ("__init__.py", "arch.py"):
        files[f"torch_images/{name}"] = (PACKAGE / name).read_bytes()
    return files


def _files(root: Path, below: str) -> dict[str, bytes]:
    """All files below a folder by path relative to `root`, without bytecode."""
    paths = [p for p in (root / below).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(paths)}
