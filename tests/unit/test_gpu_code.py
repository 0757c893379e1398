"""Which GPUs an image has no code for: the rule, the lines, and what cuda-doctor makes of them."""

from __future__ import annotations

import ctypes
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_runtime
import facts
import pytest
from decision import Choice, Device, Host, Probe, Release
from gpu_code import Code, left, read, target
from hypothesis import given
from hypothesis import strategies as st

from tests.scripts import load
from torch_images.arch import Capability, coverage
from torch_images.build.render import pruned_facts
from torch_images.config.matrix import choose
from torch_images.config.types import Config

COMPILED = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]
H100 = ("NVIDIA H100 80GB HBM3", "9.0")
IMAGES = {
    "8.0": "torch-cu130:sm80",
    "9.0": "torch-cu130:sm90",
    "10.0": "torch-cu130:sm100",
    "12.0": "torch-cu130:sm120",
}
PRUNED = Code(("sm_120",), ("12.0",), IMAGES)
LINE = (
    "this image has no code for NVIDIA H100 80GB HBM3 (9.0): it was pruned for 12.0; "
    "take torch-cu130:sm90, or an image for all architectures"
)


@pytest.mark.parametrize(
    ("pruned", "found"),
    [
        ([], COMPILED),
        (["9.0"], ["sm_90"]),
        (["8.0", "12.0"], ["sm_80", "sm_120"]),
        (["12.0", "8.0"], ["sm_80", "sm_120"]),
        (["8.9"], ["sm_86"]),
        (["12.1"], ["sm_120"]),
        (["13.0"], ["compute_120"]),
        (["7.0"], []),
    ],
)
def test_a_pruned_image_has_what_its_architectures_load(
    pruned: list[str], found: list[str]
) -> None:
    assert left(COMPILED, pruned) == found


CAPABILITIES = st.builds(Capability, st.integers(5, 13), st.integers(0, 9))
SUFFIXES = st.sampled_from(["", "", "a", "f"])


@given(
    CAPABILITIES,
    st.sets(st.tuples(CAPABILITIES, SUFFIXES)),
    st.sets(st.tuples(CAPABILITIES, SUFFIXES)),
)
def test_its_rule_is_that_of_the_pipeline(
    gpu: Capability, machine: set[tuple[Capability, str]], virtual: set[tuple[Capability, str]]
) -> None:
    elf = [c.sm.replace("sm", "sm_") + suffix for c, suffix in machine]
    ptx = [c.sm.replace("sm", "compute_") + suffix for c, suffix in virtual]
    best = coverage(gpu, elf, ptx)
    assert target(elf + ptx, str(gpu)) == (best.target if best else "")
    assert left(elf + ptx, [str(gpu)]) == ([best.target] if best else [])


@given(CAPABILITIES, CAPABILITIES)
def test_a_gpu_runs_machine_code_of_its_major_version_that_is_not_newer(
    gpu: Capability, code: Capability
) -> None:
    assert bool(target([code.sm.replace("sm", "sm_")], str(gpu))) is gpu.runs(code)


@pytest.mark.parametrize(
    ("code", "gpu", "served"),
    [
        ("sm_90", "9.0", True),
        ("sm_80", "8.6", True),  # same major version, older code
        ("sm_86", "8.0", False),  # same major version, newer code
        ("sm_120", "12.1", True),
        ("sm_120", "13.0", False),
        ("sm_90", "12.0", False),
        ("sm_90a", "9.0", False),  # single kernels
        ("compute_120", "13.0", True),  # the driver compiles it
        ("compute_120", "12.0", True),
        ("compute_120", "9.0", False),
    ],
)
def test_a_gpu_that_is_not_served_gets_a_line(code: str, gpu: str, served: bool) -> None:
    lines = Code((code,), (gpu,)).unserved([("GPU", gpu)])
    assert len(lines) == (0 if served else 1)


def test_the_line_says_which_gpu_what_there_is_and_what_to_take() -> None:
    assert PRUNED.unserved([H100]) == [LINE]
    several = dataclasses.replace(PRUNED, targets=("sm_100", "sm_120"), pruned=("10.0", "12.0"))
    assert several.unserved([H100]) == [LINE.replace("for 12.0;", "for 10.0, 12.0;")]


def test_only_the_gpus_that_are_not_served_get_a_line_and_each_kind_one() -> None:
    gpus = [("RTX 5090", "12.0"), H100, H100, ("A100", "8.0"), ("RTX 5090", "12.0")]
    first, second = PRUNED.unserved(gpus)
    assert first == LINE
    assert second.startswith("this image has no code for A100 (8.0): it was pruned for 12.0; take ")
    assert second.endswith(" torch-cu130:sm80, or an image for all architectures")


def test_what_is_not_known_is_not_said() -> None:
    assert PRUNED.unserved([("GPU", None), ("GPU", "")]) == []
    assert PRUNED.unserved([]) == []
    assert Code().unserved([H100]) == []
    assert read({"cuda": "13.0", "releases": []}) == Code()


@pytest.mark.parametrize(
    ("gpu", "remedy"),
    [
        ("10.3", "take torch-cu130:sm100, or an image for all architectures"),
        ("8.9", "take torch-cu130:sm80, or an image for all architectures"),
        ("7.5", "`./inv pick` names an image that has some"),
        ("13.0", "`./inv pick` names an image that has some"),
    ],
)
def test_a_gpu_without_an_image_of_its_own_takes_one_whose_code_it_runs(
    gpu: str, remedy: str
) -> None:
    [line] = PRUNED.unserved([("GPU", gpu)])
    assert line == f"this image has no code for GPU ({gpu}): it was pruned for 12.0; {remedy}"


def test_an_image_that_was_not_pruned_names_what_its_torch_was_compiled_for() -> None:
    assert Code(("sm_90", "sm_120")).unserved([("GPU", "8.0")]) == [
        "this image has no code for GPU (8.0): its torch was compiled for sm_90, sm_120; "
        "`./inv pick` names an image that has some"
    ]


@pytest.mark.parametrize(
    ("arch", "code"),
    [
        ("12.0", ["sm_120"]),
        ("8.9", ["sm_86"]),  # which an RTX 3090 (8.6) runs, too
        ("8.6,8.9", ["sm_86"]),
        ("8.0,12.0", ["sm_80", "sm_120"]),
    ],
)
def test_a_pruned_image_knows_the_code_that_is_left(
    config: Config, arch: str, code: list[str]
) -> None:
    spec = dataclasses.replace(choose(config, arch=arch), prune=True)
    told = pruned_facts(config, spec)
    assert (told["pruned"], told["code"]) == (arch.split(","), code)
    assert spec.release.facts
    compiled = [c.sm.replace("sm", "sm_") for c in spec.release.facts.arches]
    assert left(compiled, told["pruned"]) == code
    assert read(json.loads(json.dumps(told))) == Code(
        tuple(code), tuple(arch.split(",")), told["images"]
    )


def test_without_facts_a_pruned_image_has_code_for_what_was_asked(config: Config) -> None:
    spec = dataclasses.replace(choose(config, arch="8.9"), prune=True)
    spec = dataclasses.replace(spec, release=dataclasses.replace(spec.release, facts=None))
    assert pruned_facts(config, spec)["code"] == ["sm_89"]


def test_the_images_to_take_are_of_the_same_kind(config: Config) -> None:
    """FBGEMM has no code for GPUs of 7.5 and 12.0, so recsys has no such image."""
    plain = dataclasses.replace(choose(config, arch="12.0"), prune=True)
    assert pruned_facts(config, plain)["images"] == {
        name: f"torch-cu130:sm{name.replace('.', '')}"
        for name in config.names("arch")
        if name not in ("7.0", "11.0", "12.1")  # CUDA 13 dropped it; in Arm hosts only
    }
    spec = dataclasses.replace(
        choose(config, cuda="12.8", arch="all", variant="recsys"), prune=True
    )
    assert pruned_facts(config, spec)["images"] == {
        "8.0": "torch-cu128:sm80-recsys",
        "8.6": "torch-cu128:sm86-recsys",
        "8.9": "torch-cu128:sm89-recsys",
        "9.0": "torch-cu128:sm90-recsys",
        "10.0": "torch-cu128:sm100-recsys",
    }


class Nvml:
    """A stand-in for NVML with two GPUs; `capabilities` is what it says of them, if it can."""

    def __init__(self, capabilities: list[tuple[int, int]] | None, error: int = 0) -> None:
        if capabilities is not None:
            self.nvmlDeviceGetCudaComputeCapability = self._capability
        self.capabilities, self.error = capabilities or [], error

    def _capability(self, device: ctypes.c_void_p, major: Any, minor: Any) -> int:
        values = self.capabilities[(device.value or 0) - 1]
        major._obj.value, minor._obj.value = values
        return self.error

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlSystemGetDriverVersion(self, version: Any, _length: int) -> int:  # noqa: N802
        version.value = b"580.95.05"
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, device: Any) -> int:  # noqa: N802
        device._obj.value = index + 1
        return 0

    def nvmlDeviceGetName(self, device: ctypes.c_void_p, name: Any, _length: int) -> int:  # noqa: N802
        name.value = f"GPU {device.value}".encode()
        return 0

    def nvmlDeviceGetBrand(self, _device: ctypes.c_void_p, brand: Any) -> int:  # noqa: N802
        brand._obj.value = 5
        return 0


@pytest.mark.parametrize(
    ("nvml", "capabilities"),
    [
        (Nvml([(9, 0), (12, 1)]), ("9.0", "12.1")),
        (Nvml([(9, 0), (12, 1)], error=3), (None, None)),  # not supported
        (Nvml(None), (None, None)),  # an NVML without the function
    ],
)
def test_capabilities_come_from_nvml(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nvml: Nvml,
    capabilities: tuple[str | None, str | None],
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: nvml)
    monkeypatch.setattr(facts, "in_child", lambda work, _: json.loads(json.dumps(work())))
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    found = facts.gather(tmp_path, 0.0)
    assert found.driver == "580.95.05"
    assert found.devices == (
        Device("GPU 1", 5, capabilities[0]),
        Device("GPU 2", 5, capabilities[1]),
    )


DOCTOR: Any = load("scripts/image/commands/cuda-doctor")
CUDA = Release("13.0", "580.65.06", "580", "torch-cu130")
SERVED = Device("RTX 5090", 15, "12.0")
UNSERVED = Device(H100[0], 14, H100[1])
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run cuda-doctor with a decision and what NVML says if it is asked: exit code and output."""

    def main(
        *words: str,
        devices: tuple[Device, ...] | None,
        code: Code = PRUNED,
        asked: tuple[Device, ...] | None = None,
        error: int = 0,
    ) -> tuple[int, str]:
        host = Host("580.95.05", "/l/libcuda.so.1", nodes=True, devices=devices)
        choice = Choice("host", works=True, reason="why")
        image = cuda_runtime.Image(CUDA, (), None, code)
        made = cuda_runtime.Decision(image, host, "auto", choice, None)
        monkeypatch.setattr(cuda_runtime, "decide", lambda *_: made)
        monkeypatch.setattr(cuda_runtime, "probe", lambda *_: Probe(error, "cuInit", "", "/l"))
        monkeypatch.setattr(facts, "gather", lambda *_: Host(devices=asked))
        monkeypatch.setattr("sys.argv", ["cuda-doctor", *words])
        with pytest.raises(SystemExit) as ended:
            DOCTOR.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().out

    return main


def test_doctor_says_which_gpu_a_pruned_image_has_no_code_for(run: Run) -> None:
    code, out = run(devices=(SERVED, UNSERVED))
    lines = out.splitlines()
    assert code == 1
    assert lines[:3] == ["CUDA 13.0 uses the host's driver 580.95.05: why", LINE, ""]
    assert f"GPUs      RTX 5090 (GeForce RTX, 12.0), {H100[0]} (NVIDIA, 9.0)" in lines
    assert lines[-1] == "CUDA works here, but torch has no code for a GPU."


def test_doctor_asks_nvml_if_the_choice_did_not_need_the_gpus(run: Run) -> None:
    assert run(devices=None, asked=(UNSERVED,))[0] == 1
    assert run(devices=(), asked=(UNSERVED,))[0] == 0
    code, out = run(devices=None, asked=None)
    assert (code, "GPUs      none\n" in out) == (0, True)


@pytest.mark.parametrize(
    ("devices", "code"),
    [
        ((SERVED,), PRUNED),
        ((Device("GPU", 14),), PRUNED),
        ((UNSERVED,), Code()),
    ],
    ids=["served", "capability not known", "not pruned"],
)
def test_doctor_says_nothing_else(run: Run, devices: tuple[Device, ...], code: Code) -> None:
    status, out = run(devices=devices, code=code)
    assert status == 0
    assert "no code" not in out
    assert out.endswith("\nCUDA works here.\n")


def test_doctor_names_a_gpu_without_its_capability(run: Run) -> None:
    assert "\nGPUs      GPU (NVIDIA)\n" in run(devices=(Device("GPU", 14),))[1]


def test_doctor_says_it_beside_a_cuda_that_does_not_work(run: Run) -> None:
    code, out = run(devices=(UNSERVED,), error=803)
    assert code == 1
    assert LINE in out
    assert out.endswith("\nCUDA does not work here.\n")
    assert run(devices=(SERVED,), error=803)[0] == 1


def test_doctor_says_it_as_json(run: Run) -> None:
    code, out = run("--json", devices=None, asked=(UNSERVED,))
    found = json.loads(out)
    assert (code, found["works"], found["unserved"]) == (1, True, [LINE])
    assert found["host"]["devices"] == [{"name": H100[0], "brand": "NVIDIA", "capability": "9.0"}]
    assert found["image"]["code"] == {
        "targets": ["sm_120"],
        "pruned": ["12.0"],
        "images": IMAGES,
    }
    assert json.loads(run("--json", devices=(SERVED,))[1])["unserved"] == []
