"""An image and its claim -> checks: the suites, run on it.

tests/image checks from outside with testinfra. tests/container runs inside with pytest, which is
copied into the container and never into the image. With GPUs its modules run in parallel, each in
its own container, as many as fit on the GPUs. tests/programs also runs inside, without GPUs: what
it checks depends on torch and Python alone, so `verify` needs it once for each (programs.py).
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from torch_images.build.context_file import own_checks
from torch_images.build.job import Job
from torch_images.build.render import RUNTIME
from torch_images.config.own import Own
from torch_images.errors import EngineError, TorchImagesError
from torch_images.fetch.tools import install_tools
from torch_images.host.container import RunningContainer
from torch_images.host.emulation import processor
from torch_images.host.gpus import Request
from torch_images.host.image_info import ImageInfo
from torch_images.host.workers import workers
from torch_images.platforms import find
from torch_images.project import PACKAGE
from torch_images.verify.listings import listings

_INSIDE = "/verify"
_ROOM = 15_000  # MiB of a GPU for the checks of one container, more than any check uses
_QUERY = "compute_mode,memory.total,driver_version,name"  # for nvidia-smi; memory in MiB
_REPORT = "/tmp/torch-images-report.xml"  # noqa: S108  in a container, where any user can write it
_NOTHING = 5  # pytest's exit code if no check is left, as in a module for a missing extra
_TRIAL = re.compile(r"^trial +in force: (.+)$", re.MULTILINE)  # of cuda-doctor
_ANYONE = "12345:12345"  # a user whom no image has
_GPU_MODULE = "test_gpu_"
_OWN = "own"  # the folder of the user's own checks, in a container
# The outcome of a check by the element of its report; without one it passed.
_OUTCOMES = (("failure", "failed"), ("error", "failed"), ("skipped", "skipped"))


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check: `outcome` is passed, failed or skipped; `message` says why it did not pass."""

    name: str
    outcome: str
    seconds: float
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    """The result of suites: checks, observed facts by name, and what containers used."""

    checks: tuple[Check, ...]
    observed: dict[str, str]
    processor_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is checked, and how.

    `claim` has the expected facts, `gpus` are as for `verify`. For an `emulated` image, checks of
    a real processor are skipped, with the reason, and its machine code is listed from outside.
    Files that are `unchanged` are not read, and checks of tests/container that are `known` to pass,
    e.g. "test_arch.py::test_code", do not run. `own` has a user's own checks.
    """

    job: Job
    info: ImageInfo
    claim: Mapping[str, Any]
    gpus: Sequence[Request] = ()
    emulated: bool = False
    unchanged: tuple[str, ...] = ()
    known: Sequence[str] = ()
    own: Own | None = None

    def container(self, gpus: Sequence[Request] = ()) -> AbstractContextManager[RunningContainer]:
        """A container of the image, with these GPUs."""
        options: dict[str, Any] = {}
        if gpus:
            # NCCL's processes use shared memory, and Docker's default is 64 MB.
            options = {"device_requests": list(gpus), "shm_size": "2g"}
        if self.emulated:
            options["environment"] = processor(find(self.claim["platform"]))
        return self.job.engine.container(self.info.id, network_mode="none", **options)


def examine(subject: Subject, *, programs: Sequence[str] = ()) -> SuiteResult:
    """Run the suites on an image, and the modules `programs` of tests/programs.

    Raises EngineError if CUDA does not work with the GPUs.
    """
    job, gpus = subject.job, subject.gpus
    answer = _ask_gpus(subject) if gpus else ""
    parallel = room(answer, job.engine.processors()) if gpus else 2
    modules = _modules(job.workspace.root, gpus=bool(gpus))
    parts = shards(modules) if gpus and parallel > 1 else [tuple(modules)]
    jobs: list[Callable[[], SuiteResult]] = [partial(outside, subject, ())]
    jobs += [partial(inside, subject, "container", part) for part in parts]
    if programs:
        jobs.append(partial(inside, replace(subject, gpus=()), "programs", programs))
    if subject.own and subject.own.checks:
        jobs.append(partial(inside, subject, _OWN, ()))
    # Each job has its own container, so the files of one do not affect another.
    with workers(parallel) as pool:
        work = [pool.submit(job) for job in jobs]
        results = [future.result() for future in work]
    return SuiteResult(
        checks=tuple(check for result in results for check in result.checks),
        observed=dict(item for result in results for item in result.observed.items())
        | devices(answer),
        processor_seconds=sum(result.processor_seconds for result in results),
    )


def shards(modules: Sequence[str]) -> list[tuple[str, ...]]:
    """Parts of the inside suite that run in parallel on GPUs: modules of GPU checks, the others."""
    alone = [(name,) for name in modules if name.startswith(_GPU_MODULE)]
    together = tuple(name for name in modules if not name.startswith(_GPU_MODULE))
    return [*alone, together] if together else [*alone]


def room(answer: str, processors: int) -> int:
    """How many containers can check GPUs in parallel; each needs two processors.

    `answer` is nvidia-smi's to `_QUERY`. The result is 1 for a GPU that serves only one process, or
    has no memory of its own.
    """
    gpus = [line.split(", ", 3) for line in answer.splitlines()]
    if not gpus or any(mode != "Default" or not memory.isdigit() for mode, memory, *_ in gpus):
        return 1
    return max(1, min(processors // 2, *(int(memory) // _ROOM for _, memory, *_ in gpus)))


def devices(answer: str) -> dict[str, str]:
    """The GPUs and the driver in nvidia-smi's answer to `_QUERY`; {} for "".

    GPUs of one name are counted, e.g. "2 x NVIDIA H100 80GB HBM3".
    """
    gpus = [line.split(", ", 3) for line in answer.splitlines()]
    if not gpus:
        return {}
    names = Counter(name for _, _, _, name in gpus)
    text = ", ".join(f"{count} x {name}" for name, count in names.items())
    return {"gpus": text, "driver": gpus[0][2]}


def suite_hash(root: Path, claim: Mapping[str, Any]) -> str:
    """SHA-256 of checks and expected values; a report is valid only for this hash."""
    digest = hashlib.sha256(json.dumps(claim, sort_keys=True).encode())
    digest.update(files_hash({**files_below(root, "tests/image"), **_suite_files(root)}).encode())
    return digest.hexdigest()


def parse_junit(text: str, prefix: str) -> SuiteResult:
    """The checks and observed facts in a JUnit XML report of pytest."""
    checks: list[Check] = []
    observed: dict[str, str] = {}
    for case in ET.fromstring(text).iter("testcase"):
        # A module that is skipped as a whole has no class.
        module = (case.get("classname") or case.get("name") or "").rpartition(".")[2]
        name = f"{prefix}/{module}/{case.get('name', '')}"
        notes = [(outcome, _reason(e)) for tag, outcome in _OUTCOMES for e in case.iter(tag)]
        outcome, message = notes[0] if notes else ("passed", "")
        seconds = round(float(case.get("time", "0")), 3)
        checks.append(Check(name=name, outcome=outcome, seconds=seconds, message=message))
        for fact in case.iter("property"):
            observed[fact.get("name", "")] = fact.get("value", "")
    return SuiteResult(checks=tuple(checks), observed=observed)


def _reason(note: ET.Element) -> str:
    """Why a check did not pass. pytest shortens long messages; the traceback has the whole one."""
    message = note.get("message") or ""
    if "full report in element text" in message:
        lines = [line[1:] for line in (note.text or "").splitlines() if line.startswith("E ")]
        message = "\n".join(lines) or message
    return " ".join(message.split())


def _ask_gpus(subject: Subject) -> str:
    """nvidia-smi's answer to `_QUERY` in a container of the image; "" if it fails.

    Raises EngineError if CUDA does not work: all checks on a GPU would fail.
    """
    with subject.container(subject.gpus) as container:
        doctor = container.exec("torch-entrypoint", "cuda-doctor")
        if doctor.code:
            reason = _TRIAL.search(doctor.output)
            raise EngineError(
                "CUDA does not work in a container with these GPUs: "
                f"{reason[1] if reason else _end(doctor.output)}",
                "start one, and run `docker exec CONTAINER torch-entrypoint cuda-doctor`; "
                "see docs/gpu.md",
            )
        done = container.exec(
            "nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"
        )
    return "" if done.code else done.output


def outside(subject: Subject, modules: Sequence[str]) -> SuiteResult:
    """Run tests/image, or some of its modules, e.g. "test_files.py"."""
    workspace = subject.job.workspace
    # Without GPUs, which would add files of the driver to the image's.
    with subject.container() as container, tempfile.TemporaryDirectory() as scratch:
        expected, report = Path(scratch, "expected.json"), Path(scratch, "report.xml")
        facts = {
            **subject.claim,
            "container": container.id,
            "inspect": dict(subject.info.config),
            "created": subject.info.created,
            "runs": subject.info.platform,
            "unchanged": subject.unchanged,
        }
        expected.write_text(json.dumps(facts))
        suite = workspace.root / "tests" / "image"
        command = [sys.executable, "-m", "pytest", *(str(suite / m) for m in modules or ("",))]
        command += [f"--junitxml={report}", "-q"]
        command += ["-p", "no:cacheprovider", f"--rootdir={workspace.root}"]
        command += ["-o", "junit_family=xunit1"]  # the family that can record observed facts
        env: dict[str, str | None] = {"TORCH_IMAGES_EXPECTED": str(expected)}
        emulated = "1" if subject.emulated else None
        env |= {"PYTEST_ADDOPTS": None, "TORCH_IMAGES_EMULATED": emulated}
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # those of other tests take half a second
        done = subject.job.run.run(command, env=env, cwd=workspace.root, check=False)
        if not report.exists() or done.code > 1:
            raise TorchImagesError(f"the outside checks did not run: {done.output[-400:]}")
        result = parse_junit(report.read_text(), "image")
        return replace(result, processor_seconds=container.processor_seconds())


def inside(subject: Subject, folder: str, modules: Sequence[str]) -> SuiteResult:
    """Run a suite's folder below tests/, or some of its modules, inside a container."""
    with subject.container(subject.gpus) as container:
        emulated = subject.emulated
        container.exec("mkdir", "-p", _INSIDE)
        lists = _listings(subject, container) if folder == "container" else {}
        container.put(_INSIDE, _luggage(subject) | lists)
        env = {
            "PYTHONPATH": f"{_INSIDE}/site:{_INSIDE}/suite",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TORCH_IMAGES_EXPECTED": f"{_INSIDE}/expected.json",
            # In an emulator, threads would spend their time waiting for each other.
            **({"TORCH_IMAGES_EMULATED": "1", "OMP_NUM_THREADS": "1"} if emulated else {}),
            # Without GPUs the suites share the processors: waiting threads must yield.
            **({} if subject.gpus else {"OMP_WAIT_POLICY": "PASSIVE"}),
            "TORCH_IMAGES_LISTINGS": f"{_INSIDE}/listings",
        }
        suite = f"{_INSIDE}/suite/tests"
        command = ["python", "-m", "pytest", "-v", f"--junitxml={_REPORT}"]
        command += ["-c", f"{suite}/container/pytest.ini", f"--rootdir={suite}"]
        command += [f"{suite}/{folder}/{module}" for module in modules or ("",)]
        command += [f"--deselect=container/{check}" for check in subject.known]
        if folder == _OWN:  # by their own rules
            own = f"{suite}/{_OWN}"
            command = [*command[:5], "-c", "/dev/null", f"--rootdir={own}", own]
            command += ["-p", "no:cacheprovider", "-o", "junit_family=xunit1"]

        # With the entrypoint's environment: the libcuda that it chose, and the profile. The checks
        # also show that the image works for a user without a name; devices may be for root alone.
        start, user = ("torch-entrypoint",) if folder in ("container", _OWN) else (), "0"
        if folder == "container" and not subject.gpus:
            user = _ANYONE
        done = container.exec(*start, *command, env=env, user=user)
        if folder == _OWN and done.code == _NOTHING:
            raise TorchImagesError(
                f"{subject.own.checks if subject.own else ''} has no tests",
                "pytest collects functions test_... of files test_*.py",
            )
        if done.code > 1 and not (subject.gpus and done.code == _NOTHING):
            # Another package's file in place of a library of torch's: `import torch` cannot say so.
            library = container.exec("/usr/bin/python3", "-sES", f"{RUNTIME}/libraries.py")
            reason = "" if library.code else library.output.strip()
            reason = reason or _end(done.output)
            raise TorchImagesError(f"the checks inside the image did not run: {reason}")
        result = parse_junit(container.read(_REPORT).decode(), folder)
        return replace(result, processor_seconds=container.processor_seconds())


def _end(output: str) -> str:
    """The last check and the end of pytest's output, which names modules that failed to load."""
    checks = re.findall(r"^\S*?(test_\w+\.py::\S+)", output, re.MULTILINE)
    return f"{f'{checks[-1]}: ' if checks else ''}{output[-400:]}"


def _luggage(subject: Subject) -> dict[str, bytes]:
    """The files for a container: pytest, the suites, and the claim."""
    job = subject.job
    site = install_tools("tools-verify", job.workspace, job.run)
    files = {f"site/{name}": data for name, data in files_below(site, ".").items()}
    files |= {f"suite/{name}": data for name, data in _suite_files(job.workspace.root).items()}
    own = own_checks(subject.own) if subject.own else {}
    files |= {f"suite/tests/{_OWN}/{name}": data for name, data in own.items()}
    return files | {"expected.json": json.dumps(subject.claim).encode()}


def _listings(subject: Subject, container: RunningContainer) -> dict[str, bytes]:
    """The lists of machine code that tests/container reads."""
    job = subject.job
    lists = listings(
        container,
        str(subject.claim["site_packages"]),
        job.workspace,
        job.run,
        emulated=subject.emulated,
        fresh=job.options.no_cache,
    )
    return {f"listings/{name}": data for name, data in lists.items()}


def _modules(root: Path, *, gpus: bool) -> list[str]:
    """The modules of tests/container; those that need a GPU only with `gpus`."""
    names = sorted(path.name for path in (root / "tests" / "container").glob("test_*.py"))
    return [name for name in names if gpus or not name.startswith(_GPU_MODULE)]


def _suite_files(root: Path) -> dict[str, bytes]:
    """The files inside: checks, benchmark cases, and arch.py, which judges machine code."""
    folders = ("tests/container", "tests/programs", "scripts/bench")
    files = {name: data for folder in folders for name, data in files_below(root, folder).items()}
    for name in ("__init__.py", "arch.py"):
        files[f"torch_images/{name}"] = (PACKAGE / name).read_bytes()
    return files


def files_hash(files: Mapping[str, bytes]) -> str:
    """SHA-256 of files by name and content, in hexadecimal."""
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def files_below(root: Path, below: str) -> dict[str, bytes]:
    """All files below a folder by path relative to `root`, without bytecode."""
    paths = [p for p in (root / below).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(paths)}
