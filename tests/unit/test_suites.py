"""How the suites run on an image: side by side on GPUs, and in an emulator."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.fakes import workspace_of
from torch_images.build.job import Job
from torch_images.errors import EngineError, TorchImagesError
from torch_images.host.container import ExecResult
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo
from torch_images.host.runner import Completed, Runner
from torch_images.verify import suites
from torch_images.verify.suites import Subject, SuiteResult, examine, room, shards

H100 = "Default, 81559, 580.159.04, NVIDIA H100 80GB HBM3\n"
RTX = "Default, 32607, 580.159.04, NVIDIA GeForce RTX 5090\n"
GPUS = cast("Any", ["a GPU"])
OUTPUT = (
    "suite/tests/container/test_a.py::test_x PASSED [ 50%]\n"
    "suite/tests/container/test_a.py::test_y PASSED [100%]\n"
)


def junit(name: str) -> str:
    return f'<testsuite><testcase classname="tests.{name}" name="test_x" time="1"/></testsuite>'


class Container:
    """A container that answers nvidia-smi, and runs pytest with exit code `code`."""

    id = "c0ffee"

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def exec(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        user: str = "0",
    ) -> ExecResult:
        if "cuda-doctor" in command:
            return self.machine.doctor
        if command[-1].endswith("/libraries.py"):
            return ExecResult(0, self.machine.library)
        if command[0] == "nvidia-smi":
            return ExecResult(0 if self.machine.smi else 127, self.machine.smi)
        if "pytest" in command:
            self.machine.commands.append(command)
            self.machine.users.append(user)
            return ExecResult(self.machine.code, self.machine.output)
        return ExecResult(0, "")

    def put(self, folder: str, files: Mapping[str, bytes]) -> None: ...

    def processor_seconds(self) -> float:
        return 2.5

    def read(self, path: str) -> bytes:
        return junit("container.test_a").encode()


class Machine(Runner):
    """An engine and a runner of processes; what they were asked for."""

    def __init__(self, smi: str = H100, processors: int = 32, code: int = 0) -> None:
        self.smi, self.cores, self.code, self.output = smi, processors, code, OUTPUT
        self.doctor, self.outside, self.library = ExecResult(0, ""), 0, ""
        self.options: list[dict[str, Any]] = []
        self.commands: list[Sequence[str]] = []
        self.users: list[str] = []

    def processors(self) -> int:
        return self.cores

    @contextmanager
    def container(self, image: str, **options: Any) -> Iterator[Container]:
        self.options.append(options)
        yield Container(self)

    def run(self, command: Sequence[str], **_: Any) -> Completed:
        [report] = (c.partition("=")[2] for c in command if c.startswith("--junitxml="))
        Path(report).write_text(junit("image.test_b"))
        return Completed(self.outside, "")

    def examine(
        self,
        root: Path,
        tmp: Path,
        *,
        programs: Sequence[str] = (),
        **how: Any,
    ) -> SuiteResult:
        info = ImageInfo(id="sha256:1", size=1, labels={}, config={}, created="", layers=())
        claimed = {"platform": "linux/arm64", "site_packages": "/x"}
        space = workspace_of(root, tmp, made=tmp)
        job = Job(config=cast("Any", None), workspace=space, engine=cast("Engine", self), run=self)
        subject = Subject(job=job, info=info, claim=claimed, **how)
        return examine(subject, programs=programs)


@pytest.fixture(autouse=True)
def _no_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(suites, "install_tools", lambda *_: tmp_path)
    monkeypatch.setattr(suites, "listings", lambda *_, **__: {})


def gpu_modules(root: Path) -> set[str]:
    return {path.name for path in (root / "tests/container").glob("test_gpu_*.py")}


@pytest.mark.parametrize(
    ("answer", "processors", "expected"),
    [
        (H100, 32, 5),
        (H100, 4, 2),
        (H100 + RTX, 32, 2),
        (H100 + H100.replace("Default", "Exclusive_Process"), 32, 1),
        ("Default, [N/A], 580.95, NVIDIA GB10", 32, 1),  # it shares the processor's memory
        ("", 32, 1),
    ],
)
def test_room_for_parallel_containers(answer: str, processors: int, expected: int) -> None:
    assert room(answer, processors) == expected


@pytest.mark.parametrize(
    ("answer", "gpus"),
    [
        (H100, "1 x NVIDIA H100 80GB HBM3"),
        (H100 * 2, "2 x NVIDIA H100 80GB HBM3"),
        (H100 + RTX, "1 x NVIDIA H100 80GB HBM3, 1 x NVIDIA GeForce RTX 5090"),
    ],
)
def test_examine_observes_gpus_and_driver(
    root: Path, tmp_path: Path, answer: str, gpus: str
) -> None:
    results = Machine(answer).examine(root, tmp_path, gpus=GPUS)
    assert results.observed == {"gpus": gpus, "driver": "580.159.04"}


def test_shards_have_every_module_once(root: Path) -> None:
    every = sorted(path.name for path in (root / "tests/container").glob("test_*.py"))
    parts = shards(every)
    assert sorted(name for part in parts for name in part) == every
    assert {name for part in parts for name in part if len(part) == 1} >= gpu_modules(root)
    assert shards(["test_gpu_nccl.py"]) == [("test_gpu_nccl.py",)]


def test_examine_with_gpus_runs_modules_in_parallel(root: Path, tmp_path: Path) -> None:
    machine = Machine()
    checks = machine.examine(root, tmp_path, gpus=GPUS).checks
    parts = len(gpu_modules(root)) + 1
    assert len(machine.commands) == parts
    assert all(command[0] == "torch-entrypoint" for command in machine.commands)
    assert len(checks) == parts + 1
    with_gpus = [options for options in machine.options if "device_requests" in options]
    assert len(with_gpus) == len(machine.options) - 1  # the driver's files are not the image's


DOCTOR = """torch-images: CUDA 13.0 uses the host's driver
mode      CUDA_COMPAT=auto
trial     in force: the library cannot be loaded (libcuda.so.1: cannot open shared object file)

CUDA does not work here.
"""


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (DOCTOR, "the library cannot be loaded (libcuda.so.1: cannot open shared object file)"),
        ("no such program", "no such program"),
    ],
)
def test_examine_without_working_cuda_runs_no_check(
    root: Path, tmp_path: Path, output: str, reason: str
) -> None:
    """Each of 200 checks failed by itself, for minutes, and the message named the first one."""
    machine = Machine()
    machine.doctor = ExecResult(1, output)
    with pytest.raises(EngineError) as caught:
        machine.examine(root, tmp_path, gpus=GPUS)
    assert caught.value.message == (f"CUDA does not work in a container with these GPUs: {reason}")
    assert not machine.commands
    machine.examine(root, tmp_path)


def test_known_checks_do_not_run(root: Path, tmp_path: Path) -> None:
    """With the command for the container, on a suite of two checks outside of one."""
    machine = Machine()
    machine.examine(root, tmp_path / "made", known=("test_a.py::test_known",))
    suite = tmp_path / "suite/tests/container"
    suite.mkdir(parents=True)
    (suite / "pytest.ini").write_text("[pytest]")
    (suite / "test_a.py").write_text("def test_known(): assert 0\n\ndef test_x(): pass\n")
    [command] = machine.commands
    words = [word.replace("/verify/", f"{tmp_path}/") for word in command[command.index("-m") :]]
    words = [word for word in words if "junitxml" not in word]
    words = [word for word in words if not word.endswith(".py") or Path(word).exists()]
    done = Runner().run([sys.executable, *words, str(suite)])
    assert "1 passed, 1 deselected" in done.output


def test_examine_without_gpus_uses_one_container_inside(root: Path, tmp_path: Path) -> None:
    """As a user without a name, with the entrypoint's environment, and without checks of GPUs."""
    machine = Machine()
    results = machine.examine(root, tmp_path)
    [command] = machine.commands
    names = {word.rpartition("/")[2] for word in command if "/test_" in word}
    every = {path.name for path in (root / "tests/container").glob("test_*.py")}
    assert names == every - gpu_modules(root)
    assert command[0] == "torch-entrypoint"
    assert machine.users == ["12345:12345"]
    assert machine.options == [{"network_mode": "none"}] * 2
    assert results.processor_seconds == 5.0


@pytest.mark.parametrize("gpus", [(), GPUS])
def test_programs_run_in_a_container_of_their_own_without_gpus(
    root: Path, tmp_path: Path, gpus: Any
) -> None:
    machine = Machine()
    machine.examine(root, tmp_path, gpus=gpus)
    without = len(machine.commands), len([o for o in machine.options if "shm_size" in o])
    machine = Machine()
    results = machine.examine(root, tmp_path, gpus=gpus, programs=["test_start.py"])
    [(command, user)] = [
        (command, user)
        for command, user in zip(machine.commands, machine.users, strict=True)
        if command[-1].endswith("tests/programs/test_start.py")
    ]
    assert (command[0], user) == ("python", "0")
    with_gpus = len([o for o in machine.options if "shm_size" in o])
    assert (len(machine.commands) - 1, with_gpus) == without
    assert "programs/test_a/test_x" in {check.name for check in results.checks}


def test_examine_refuses_the_report_of_a_broken_pytest(root: Path, tmp_path: Path) -> None:
    machine = Machine()
    machine.outside = 2  # an internal error or an interruption, after the report was written
    with pytest.raises(TorchImagesError, match="outside checks did not run"):
        machine.examine(root, tmp_path)
    machine = Machine(code=2)
    with pytest.raises(TorchImagesError, match="checks inside the image did not run"):
        machine.examine(root, tmp_path)


def test_examine_names_the_check_that_crashed(root: Path, tmp_path: Path) -> None:
    machine = Machine(code=139)
    machine.output = f"{OUTPUT}suite/tests/container/test_b.py::test_z[1] Fatal Python error\n"
    with pytest.raises(TorchImagesError) as caught:
        machine.examine(root, tmp_path)
    assert caught.value.message.startswith(
        "the checks inside the image did not run: test_b.py::test_z[1]: "
    )


def test_examine_names_a_package_that_broke_torch(root: Path, tmp_path: Path) -> None:
    machine = Machine(code=2)
    machine.library = "nvidia-nccl-cu12 2.26.2 replaced libnccl.so.2\n"
    with pytest.raises(TorchImagesError) as caught:
        machine.examine(root, tmp_path)
    assert caught.value.message.endswith(f" did not run: {machine.library.strip()}")
