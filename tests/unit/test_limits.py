"""What an image says of a GPU that one of torch's libraries has no code for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import cuda_runtime
import facts
import pytest

from tests.scripts import load
from torch_images.build.limits import lacks, limits
from torch_images.build.plan import lock_image, plan_image
from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec
from torch_images.config.lock_requests import variant_inputs
from torch_images.config.types import Config
from torch_images.inside.decision import Choice, Device, Host, Probe, Release
from torch_images.verify.verify import claim

DOCTOR: Any = load("scripts/image/commands/cuda-doctor")
START = "libtorch_cuda_linalg.so (MAGMA) has no code for 7.5: "
T4, H100 = Device("Tesla T4", 2, "7.5"), Device("NVIDIA H100", 14, "9.0")


def image(config: Config, **axes: str) -> ImageSpec:
    return choose(config, **{"base": "trixie", "platform": "linux/amd64", **axes})


def test_magma_has_no_code_for_turing_in_wheels_of_cuda_13(config: Config) -> None:
    for axes in ({}, {"arch": "7.5"}, {"arch": "7.5,9.0"}):
        missing = limits(image(config, **axes))
        assert list(missing) == ["7.5"]
        [line] = missing["7.5"]
        assert line.startswith(START)
        assert "TORCH_LINALG_PREFER_CUSOLVER=1" in line
    assert limits(image(config, arch="8.6")) == {}  # none of its own GPUs is concerned
    assert limits(image(config, cuda="12.8")) == {}  # MAGMA's code for 7.0 runs on 7.5
    assert limits(choose(config, source="fork")) == {}  # compiled for what it serves
    unknown = dataclasses.replace(image(config).release, facts=None)
    assert limits(dataclasses.replace(image(config), release=unknown)) == {}


@pytest.mark.parametrize("arch", ["7.5", "8.0"])
def test_limits_are_in_image_json_and_claim(config: Config, root: Path, arch: str) -> None:
    spec = image(config, arch=arch)
    plan = plan_image(config, lock_image(config, spec, root / "locks"), root)
    [about] = [json.loads(f.data) for f in plan.context.files if f.path == "runtime/image.json"]
    assert about.get("limits", {}) == limits(spec)
    assert ("limits" in about) is (arch == "7.5")
    assert claim(config, plan)["lacks"] == {
        arch: ["libtorch_cuda_linalg.so"] if arch == "7.5" else []
    }


@pytest.mark.parametrize(
    ("devices", "lines"),
    [((T4, H100, T4), ["one", "two"]), ((Device("GPU", 2),), [])],
    ids=["two of a kind", "capability not known"],
)
def test_doctor_reports_limits_of_its_gpus(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    devices: tuple[Device, ...] | None,
    lines: list[str],
) -> None:
    """The image works, so the exit code is 0. The start itself says nothing of it."""
    about = {"cuda": "13.0", "driver": "580", "floor": "580", "limits": {"7.5": ["one", "two"]}}
    (tmp_path / "image.json").write_text(json.dumps(about))
    own = cuda_runtime.read_image(tmp_path, tmp_path / "image.json")
    assert own.release == Release("13.0", "580", "580")
    host = Host("580.95.05", "/l/libcuda.so.1", nodes=True, devices=devices)
    start = cuda_runtime.Decision(own, host, "auto", Choice("host", works=True, reason="why"), None)
    assert "one" not in start.line
    monkeypatch.setattr(cuda_runtime, "decide", lambda *_: start)
    monkeypatch.setattr(cuda_runtime, "probe", lambda *_: Probe(0, "cuInit", "", "/l"))
    monkeypatch.setattr(facts, "gather", lambda *_: Host(devices=None))
    for words in ([], ["--json"]):
        monkeypatch.setattr("sys.argv", ["cuda-doctor", *words])
        with pytest.raises(SystemExit) as ended:
            DOCTOR.main()
        assert ended.value.code == 0
    text, _, report = capsys.readouterr().out.partition("{")
    assert [line for line in text.splitlines() if line in ("one", "two")] == lines
    assert json.loads("{" + report)["limits"] == lines


def test_variant_without_nvcc_for_one_cuda_version(config: Config) -> None:
    """It has everything else, and its label and `pick` say so."""
    variants = tuple(
        dataclasses.replace(v, no_toolkit=("13.0",)) if v.name == "pod" else v
        for v in config.variants
    )
    changed = dataclasses.replace(config, variants=variants)
    spec, whole = image(changed, variant="pod"), image(config, variant="pod")
    assert (spec.variant.cuda_home, whole.variant.cuda_home) == ("", "/usr/local/cuda")
    assert spec.description.endswith(", without nvcc")
    assert "nvcc" in lacks(spec)[0]
    assert lacks(whole) == ()
    wheels, _ = variant_inputs(changed, spec)
    assert wheels
    assert not any(word.startswith("cuda-toolkit") for word in wheels.request)
    other = choose(changed, cuda="12.8", variant="pod", base="bookworm", platform="linux/amd64")
    assert other.variant.cuda_home
