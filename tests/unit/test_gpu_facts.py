"""What an engine and this machine have for GPUs, and what `doctor` makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import facts
import pytest

from torch_images.cli.doctor import CDI, OWN, diagnose, document, text
from torch_images.errors import EngineError
from torch_images.host import gpu_facts
from torch_images.host.cdi import SpecFile
from torch_images.host.connection import ABSENT
from torch_images.host.engine import Engine
from torch_images.host.gpu_facts import (
    EngineGpus,
    Gpu,
    Machine,
    engine_gpus,
    from_info,
    machine,
)
from torch_images.host.gpus import device_requests

ALL = "nvidia.com/gpu=all"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one spec, which is also the default one; an engine can be told to use it."""
    (tmp_path / "nvidia.yaml").write_text(
        "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n"
        "- {name: 0, containerEdits: {env: [A=b]}}\n- {name: all, containerEdits: {env: [A=b]}}\n"
    )
    monkeypatch.setattr(gpu_facts, "FOLDERS", (str(tmp_path),))
    return tmp_path


def asked(
    *, version: str = "26.1.5+dfsg1", local: bool = True, hook: bool = False, **more: Any
) -> EngineGpus:
    """What is found where `docker info` says this."""
    return from_info({"ServerVersion": version, **more}, local=local, hook=hook)


def test_the_way_of_dockers_own_gpus(folder: Path) -> None:
    """By the runtime that is set up, or by the program that dockerd itself looks for."""
    runtimes: dict[str, Any] = {"nvidia": {}, "runc": {}}
    assert asked(Runtimes=runtimes).ways.own is True
    assert asked(Runtimes={"runc": {}}, hook=True).ways.own is True
    assert asked(Runtimes={"runc": {}}).ways.own is False
    assert asked(Runtimes=None).ways.own is False
    assert asked(Runtimes={"runc": {}}, local=False).ways.own is None
    assert asked(Runtimes=runtimes, local=False).ways.own is True


def test_cdi_is_on_where_the_engine_names_folders(folder: Path) -> None:
    """What it would have is known all the same."""
    names = ("nvidia.com/gpu=0", ALL)
    on, off = asked(CDISpecDirs=[str(folder)]).ways, asked(CDISpecDirs=[]).ways
    assert (on.cdi, on.devices) == (True, names)
    assert (off.cdi, off.devices) == (False, names)
    assert asked().ways == off  # an engine before Docker 25 does not say
    assert asked(CDISpecDirs=[str(folder / "none")]).ways.devices == ()


def test_files_of_another_machine_are_not_read(folder: Path) -> None:
    found = asked(CDISpecDirs=[str(folder)], local=False)
    assert (found.ways.devices, found.files) == (None, ())


def test_a_newer_engine_says_its_devices(folder: Path) -> None:
    listed = [{"Source": "cdi", "ID": "nvidia.com/gpu=7"}, {"Source": "other", "ID": "x"}]
    dirs: dict[str, Any] = {"CDISpecDirs": [str(folder)]}
    for local in (True, False):
        told = asked(version="28.2.0", local=local, DiscoveredDevices=listed, **dirs)
        assert told.ways.devices == ("nvidia.com/gpu=7",)
        silent = asked(version="28.2.0", local=local, DiscoveredDevices=None, **dirs)
        assert silent.ways.devices == ()
    assert asked(version="28.1.9", local=False, **dirs).ways.devices is None
    assert asked(version="odd", local=False, **dirs).ways.devices is None


def test_what_may_not_be_read_leaves_the_devices_unknown(folder: Path) -> None:
    (folder / "broken.json").write_text("{")
    found = asked(CDISpecDirs=[str(folder)])
    assert found.ways.devices == ("nvidia.com/gpu=0", ALL)
    assert found.ways.problem == f"{folder}/broken.json: {found.files[0].problem}"
    closed = SpecFile(path="x", problem="Permission denied", readable=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_facts, "read_folders", lambda _: ((closed,),))
        assert asked(CDISpecDirs=["x"]).ways.devices is None


def test_devices_that_two_files_define_are_named(folder: Path) -> None:
    (folder / "second.yaml").write_text((folder / "nvidia.yaml").read_text())
    found = asked(CDISpecDirs=[str(folder)])
    assert found.twice == ("nvidia.com/gpu=0", ALL)
    assert found.ways.problem == "nvidia.com/gpu=0 is defined twice"
    with pytest.raises(EngineError, match=r"no spec is for nvidia.com/gpu \(nvidia.com/gpu=0 is d"):
        device_requests("all", found.ways)


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("hook", [True, False])
def test_an_engine_is_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, local: bool, hook: bool
) -> None:
    """NVIDIA's program is looked for here, also beside PATH, and only for an engine that is here."""

    class Fake(Engine):
        def __init__(self) -> None: ...

        def info(self) -> dict[str, Any]:
            return {"ServerVersion": "26.1.5", "CDISpecDirs": [str(folder)]}

        def local_root(self) -> Path | None:
            return folder if local else None

    (folder / "bin").mkdir()
    if hook:
        (folder / "bin" / "nvidia-container-runtime-hook").write_text("#!/bin/sh\n")
        (folder / "bin" / "nvidia-container-runtime-hook").chmod(0o755)
    for path, system in (("/none", folder / "bin"), (folder / "bin", "/none")):
        monkeypatch.setattr(gpu_facts, "_SYSTEM", str(system))
        monkeypatch.setenv("PATH", str(path))
        found = engine_gpus(Fake())
        assert (found.version, found.local, found.runtime) == ("26.1.5", local, False)
        assert found.ways.own == (hook if local else None)
        assert found.ways.problem == ""
    assert from_info({}, local=False, hook=False).version == ""


# --- the machine ----------------------------------------------------------------------------------

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x@y)  \n"
    "GCC version:  gcc version 15.3.0 (GCC) \n"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 22:50:36 UTC 2025\n"


@pytest.mark.parametrize(
    ("proc", "sys", "driver"),
    [
        (OPEN, "580.159.04\n", "580.159.04"),
        (CLOSED, "", "570.86.15"),
        ("", "550.54\n", "550.54"),
        (CLOSED, "580.1.1", "570.86.15"),
        ("NVRM version: nothing", "580.1.1", "580.1.1"),
        ("", "N/A", ""),
        ("", "580.1.1 x", ""),
        ("", "", ""),
    ],
)
def test_the_driver_is_read_as_images_read_it(
    tmp_path: Path, proc: str, sys: str, driver: str
) -> None:
    """The start of a container has its own reader, which no module of this package can import."""
    for path, said in (("proc/driver/nvidia/version", proc), ("sys/module/nvidia/version", sys)):
        if said:
            (tmp_path / path).parent.mkdir(parents=True)
            (tmp_path / path).write_text(said)
    assert machine(tmp_path).driver == driver
    assert facts.kernel_driver(tmp_path) == driver


def test_gpus_by_the_kernel_drivers_own_words(tmp_path: Path) -> None:
    """As on a machine with an H100 and driver 580.159.04, with another UUID."""
    told = (
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 41\nGPU UUID: \t GPU-1111-2222\n"
        "Video BIOS: \t 96.00.da.00.0c\nBus Location: \t 0000:00:06.0\nGPU Excluded:\t No\n"
    )
    for bus, words in (("0000:00:06.0", told), ("0000:01:06.0", "Model:\nIRQ: 1\n")):
        (tmp_path / "proc/driver/nvidia/gpus" / bus).mkdir(parents=True)
        (tmp_path / "proc/driver/nvidia/gpus" / bus / "information").write_text(words)
    (tmp_path / "proc/driver/nvidia/version").write_bytes(b"NVRM version: \xff  580.10.1")
    assert machine(tmp_path).driver == "580.10.1"
    assert machine(tmp_path).gpus == (
        Gpu(name="NVIDIA H100 80GB HBM3", uuid="GPU-1111-2222"),
        Gpu(name="unknown", uuid=""),
    )


def test_wsl_has_the_driver_of_windows(tmp_path: Path) -> None:
    assert machine(tmp_path) == Machine(driver="", gpus=(), wsl=False)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert machine(tmp_path) == Machine(driver="", gpus=(), wsl=True)


# --- doctor ---------------------------------------------------------------------------------------

H100 = Machine(driver="580.159.04", gpus=(Gpu(name="H\x1b[31m", uuid="GPU-1"),), wsl=False)
EMPTY = Machine(driver="", gpus=(), wsl=False)
WSL = Machine(driver="", gpus=(), wsl=True)
RUNTIME: dict[str, Any] = {"Runtimes": {"nvidia": {}}}


def test_doctor_where_dockers_own_way_works(folder: Path) -> None:
    for host in (H100, WSL, replace(H100, driver=""), replace(H100, gpus=())):
        found = diagnose(host, asked(**RUNTIME))
        assert (found.works, found.way, found.advice) == (True, OWN, "")
        last = text(found).splitlines()[-1]
        assert last == "Containers get GPUs here: docker run --rm --gpus all IMAGE cuda-doctor"


def test_doctor_where_cdi_works(folder: Path) -> None:
    found = diagnose(H100, asked(CDISpecDirs=[str(folder)]))
    assert (found.works, found.way) == (True, CDI)
    assert text(found).splitlines() == [
        "driver      580.159.04",
        "GPU         H\\x1b[31m (GPU-1)",
        "engine      Docker 26.1.5+dfsg1",
        "runtime     nvidia is not there",
        f"CDI         on, looks in {folder}",
        f"specs       {folder}/nvidia.yaml: 2 devices",
        "devices     nvidia.com/gpu=0, nvidia.com/gpu=all",
        "--gpus all  goes by CDI",
        "",
        ("Containers get GPUs here: docker run --rm --device nvidia.com/gpu=all IMAGE cuda-doctor"),
    ]


def test_doctor_says_what_to_do(folder: Path) -> None:
    """The first thing that is missing; never an error."""
    (folder / "second.json").write_text("{")
    on: dict[str, Any] = {"CDISpecDirs": [str(folder)]}
    for host, engine, told in (
        (EMPTY, asked(**RUNTIME), "no driver of NVIDIA's is loaded on this machine; install one"),
        (H100, asked(), "CDI is off in the engine, although specs for nvidia.com/gpu are there;"),
        (H100, asked(CDISpecDirs=["/none"]), "CDI is on in the engine, but no spec is for nvidia"),
        (H100, EngineError("no Docker", ABSENT), "no Docker; start it, or run `./inv build`, wh"),
        (H100, EngineError("too old", "take 25"), "too old; take 25"),
    ):
        found = diagnose(host, engine)
        assert found.works is False
        assert text(found).splitlines()[-1].startswith(f"Containers get no GPU here: {told}")
        assert found.advice.startswith(told)
    shown = text(diagnose(H100, asked(**on)))
    assert f"            {folder}/second.json: it is neither JSON nor YAML" in shown


def test_doctor_shows_what_is_not_there(folder: Path) -> None:
    assert text(diagnose(WSL, EngineError("gone"))).splitlines() == [
        "driver      none that can be seen, WSL2 has the driver of Windows",
        "GPU         none that can be seen",
        "engine      none that can be used",
        "--gpus all  goes no way",
        "",
        "Containers get no GPU here: gone",
    ]
    assert text(diagnose(H100, asked(version="26", **RUNTIME))).splitlines()[2:5] == [
        "engine      Docker 26",
        "runtime     nvidia is there",
        "CDI         off",
    ]
    assert text(diagnose(H100, asked(CDISpecDirs=["/none", "/no"]))).splitlines()[4:7] == [
        "CDI         on, looks in /none, /no",
        "specs       none",
        "devices     none",
    ]
    (folder / "second.yaml").write_text((folder / "nvidia.yaml").read_text())
    lines = text(diagnose(H100, asked(CDISpecDirs=[str(folder)]))).splitlines()
    assert lines[5:9] == [
        f"specs       {folder}/nvidia.yaml: 2 devices",
        f"            {folder}/second.yaml: 2 devices",
        "twice       nvidia.com/gpu=0, nvidia.com/gpu=all",
        "devices     none",
    ]


def test_doctor_without_a_device_for_all(folder: Path) -> None:
    spec = folder / "nvidia.yaml"
    spec.write_text(spec.read_text().replace("name: all", "name: 1"))
    found = diagnose(H100, asked(CDISpecDirs=[str(folder)]))
    assert (found.works, found.way) == (True, CDI)


def test_doctor_where_the_engine_does_not_say_its_devices() -> None:
    """CDI is on in an engine elsewhere, whose folders cannot be read here."""
    found = diagnose(H100, asked(local=False, CDISpecDirs=["/etc/cdi"]))
    assert (found.works, found.way) == (None, CDI)
    assert text(found).splitlines()[-1].startswith("Whether containers get GPUs cannot be known")
    assert found.advice.endswith(
        "try docker run --rm --device nvidia.com/gpu=all IMAGE cuda-doctor"
    )


def test_doctor_of_an_engine_elsewhere() -> None:
    """This machine's driver does not matter there."""
    for host in (EMPTY, H100):
        unknown = diagnose(host, asked(local=False))
        assert (unknown.works, unknown.way) == (None, OWN)
        assert text(unknown).splitlines()[-1].startswith("Whether containers get GPUs cannot be ")
        assert unknown.advice.endswith("try docker run --rm --gpus all IMAGE cuda-doctor")
        assert "Docker 26.1.5+dfsg1, on another machine" in text(unknown)
        assert "devices     not known from here" in text(unknown)
        assert diagnose(host, asked(local=False, **RUNTIME)).works is True
        listed = [{"Source": "cdi", "ID": ALL}]
        by_cdi = asked(local=False, CDISpecDirs=["/etc/cdi"], DiscoveredDevices=listed)
        assert (diagnose(host, by_cdi).works, diagnose(host, by_cdi).way) == (True, CDI)


def test_doctor_as_plain_data(folder: Path) -> None:
    (folder / "second.yaml").write_text((folder / "nvidia.yaml").read_text())
    found = diagnose(H100, asked(CDISpecDirs=[str(folder)]))
    names = ["nvidia.com/gpu=0", ALL]
    specs = [
        {"path": f"{folder}/{name}.yaml", "devices": names, "problem": "", "readable": True}
        for name in ("nvidia", "second")
    ]
    assert json.loads(json.dumps(document(found))) == {
        "works": False,
        "way": "none",
        "advice": found.advice,
        "driver": "580.159.04",
        "wsl": False,
        "gpus": [{"name": "H\x1b[31m", "uuid": "GPU-1"}],
        "engine": {
            "version": "26.1.5+dfsg1",
            "local": True,
            "nvidia_runtime": False,
            "own": False,
            "cdi": True,
            "folders": [str(folder)],
            "specs": specs,
            "defined_twice": names,
            "devices": [],
        },
    }
    assert document(diagnose(H100, EngineError("none")))["engine"] is None
    assert document(diagnose(H100, asked(local=False)))["engine"]["devices"] is None
