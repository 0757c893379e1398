"""The start of a container around its decision: time, modes, what is asked and what is found."""

from __future__ import annotations

import time
from pathlib import Path

import cuda_runtime
import effect
import facts
import pytest
import start
from _torch_images import account, defaults
from cuda_runtime import Image

from tests.decisions import NOTES
from tests.packages import elf
from torch_images.inside.decision import Choice, Host, Library, Note, Probe, Release

CUDA = Release("13.0", "580.65.06", "580")
COMPAT = Library("/opt/cuda-compat/13.0", "580.95.05", Note((570, 580), (2,)))
IMAGE = Image(CUDA, COMPAT)
KERNEL = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (x)\n"


class Clock:
    """Seconds that pass only when something takes time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def machine(root: Path, driver: str, *, node: bool = True) -> Path:
    for path, text in (
        ("proc/driver/nvidia/version", KERNEL.format(driver)),
        ("usr/lib/x86_64-linux-gnu/libcuda.so.1", ""),
        *((("dev/nvidia0", ""),) if node else ()),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.mark.parametrize(
    ("driver", "mode", "seconds"),
    [("580.95.05", "auto", [0.38]), ("580.95.05", "on", [10, 10]), ("570.86.15", "auto", [10, 10])],
)
def test_decide_gives_an_older_driver_its_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: str, mode: str, seconds: list[float]
) -> None:
    """With 0.38 s for NVML and the trial, which took up to 0.87 s, a start chose by its speed."""
    clock = Clock()
    given: list[float] = []

    def gather(_root: Path, deadline: float, *, devices: bool) -> Host:
        given.append(deadline - clock.now)
        clock.now += 0.25
        return Host(driver, "/usr/lib/libcuda.so.1", nodes=True)

    def probe(_folder: str, seconds: float) -> Probe:
        given.append(seconds)
        return Probe(0)

    monkeypatch.setattr(cuda_runtime, "time", clock)
    monkeypatch.setattr(cuda_runtime, "read_image", lambda _: IMAGE)
    monkeypatch.setattr(facts, "gather", gather)
    monkeypatch.setattr(cuda_runtime, "probe", probe)
    cuda_runtime.decide(machine(tmp_path, driver), mode)
    assert given == pytest.approx(seconds)


TRIAL = 'import time; time.sleep({}); print(\'[0, "", "", ""]\')'


def test_decide_is_equal_on_a_slow_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    monkeypatch.setattr(cuda_runtime, "read_image", lambda _: IMAGE)
    monkeypatch.setattr(cuda_runtime, "HERE", tmp_path)
    answers = set()
    for seconds in (0.0, 0.5):

        def ask(_folder: str, seconds: float = seconds) -> dict[str, object]:
            time.sleep(seconds)
            return {"driver": "", "devices": [("H100", 2, "9.0")]}

        monkeypatch.setattr(facts, "_ask_nvml", ask)
        (tmp_path / "probe.py").write_text(TRIAL.format(seconds))
        answers.add(cuda_runtime.decide(machine(tmp_path, "570.86.15"), "auto").line)
    assert len(answers) == 1
    assert "not proved" not in answers.pop()


@pytest.mark.parametrize(
    ("mode", "driver", "node", "asks"),
    [
        ("auto", "580.65.06", True, False),  # it suffices, and asking can take seconds
        ("off", "580.65.06", True, False),
        ("on", "580.65.06", True, True),  # compat is tried: whether GPUs are made for it counts
        ("auto", "580.65.06", False, True),  # the device files do not tell whether there are GPUs
        ("auto", "580.65.05", True, True),
    ],
)
def test_decide_queries_nvml(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    driver: str,
    node: bool,
    asks: bool,
) -> None:
    answer = {"driver": driver, "devices": [("H100", 2)]}
    monkeypatch.setattr(facts, "in_child", lambda *_: answer)
    monkeypatch.setattr(cuda_runtime, "read_image", lambda _: IMAGE)
    monkeypatch.setattr(cuda_runtime, "probe", lambda *_: Probe(0))
    decided = cuda_runtime.decide(machine(tmp_path, driver, node=node), mode)
    assert (decided.host.devices is not None) is asks


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("00-compat-1f2e.conf", True),
        ("nvidia.conf", False),
        ("00-compat.conf", False),
        ("zz-00-compat-1f2e.conf", False),
    ],
)
def test_only_the_toolkits_own_file_is_its_choice(tmp_path: Path, name: str, chosen: bool) -> None:
    """An image's own folders, such as those of libc.conf, may hold a libcuda, too."""
    folder = tmp_path / "usr/local/cuda-13.0/compat"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.580.95.05").write_bytes(elf(NOTES["13.0"]))
    (folder / "libcuda.so.1").symlink_to("libcuda.so.580.95.05")
    conf = tmp_path / "etc/ld.so.conf.d" / name
    conf.parent.mkdir(parents=True)
    conf.write_text("# a comment\n\n/nowhere\n/usr/local/cuda-13.0/compat\n")
    library = facts.toolkit_library(tmp_path)
    assert (library is not None) is chosen
    if library:
        assert (library.folder, library.version) == (str(folder), "580.95.05")


STRANGE = "on\n\x1b[2Jtorch-images: CUDA 13.0 uses\udcff"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (STRANGE, r"on\n\x1b[2Jtorch-images: CUDA 13.0 uses\udcff"),
        ("x" * 80, "x" * 80),
        ("x" * 9999, "x" * 77 + "..."),
        ("große Werte", "große Werte"),
    ],
)
def test_a_value_is_shown_escaped_and_short(tmp_path: Path, value: str, shown: str) -> None:
    """Whoever sets a variable could write lines of the start's own, or clear the terminal."""
    for complaint in (
        cuda_runtime.read_mode({"CUDA_COMPAT": value})[1],
        defaults.profile({"TORCH_IMAGE_GEMM": value})[2][0],
        defaults.profile({"TORCH_IMAGE_TF32": value})[2][0],
        account.complaint({account.INDUCTOR: value, "TMPDIR": str(tmp_path)}),
    ):
        assert f"{shown} " in complaint
        assert complaint.isprintable()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step sets a variable, and sees those of the steps before."""
    choice = Choice("host", works=True, reason="why")
    decided = cuda_runtime.Decision(IMAGE, Host("580.95.05"), "auto", choice, None)
    monkeypatch.setattr(cuda_runtime, "decide", lambda *_: decided)
    monkeypatch.setattr(effect, "apply", lambda *_: ("", {"A": "b c"}))
    monkeypatch.setattr(account, "changes", lambda environ, _: {"HOME": environ["A"]})
    monkeypatch.setattr(account, "complaint", lambda environ: f"no {environ['HOME']}")
    monkeypatch.setattr(defaults, "profile", lambda environ: ({}, {"P": environ["HOME"]}, ["gemm"]))


LINES = [
    "CUDA_COMPAT=maybe is not auto, on or off, and taken as auto",
    "CUDA 13.0 uses the host's driver 580.95.05: why",
    "no b c",
    "gemm",
]
ENVIRON = {"TORCH_IMAGE_STARTED": "1", "A": "b c", "HOME": "b c", "P": "b c"}


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("error", [OSError(36, "File name too long"), KeyError("x" * 999)])
@pytest.mark.parametrize(
    ("module", "step", "lost", "message"),
    [
        (cuda_runtime, "decide", "A", "libcuda was not chosen, so the loader's is used: "),
        (account, "complaint", "HOME", "variables for this user were not set: "),
        (defaults, "profile", "P", "the image's own variables were not read: "),
    ],
)
def test_prepare_failed_step_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    step: str,
    lost: str,
    message: str,
    error: Exception,
) -> None:
    """Never a traceback at a start: the other steps count."""
    assert start.prepare({"CUDA_COMPAT": "maybe"}) == (ENVIRON, LINES)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, step, fail)
    environ, lines = start.prepare({"A": "b c", "HOME": "b c"})
    assert lost not in environ
    assert environ.items() <= ENVIRON.items()
    [line] = [line for line in lines if line.startswith(message)]
    assert type(error).__name__ in line
    assert len(line) < 300
    assert "\n" not in line
