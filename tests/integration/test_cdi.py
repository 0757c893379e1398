"""Containers get devices by the Container Device Interface, from a real engine.

A spec for nvidia.com/gpu stands in for NVIDIA's: its devices are variables, a file, and /dev/null
under another name. The engine is a second one, whose folder of specs is the test's own: on a machine
with GPUs a stand-in in /etc/cdi would take the real ones away.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import ROOT, TESTS, compose_command, invoke, second_engine
from torch_images.errors import EngineError
from torch_images.host.connection import connect
from torch_images.host.engine import Engine
from torch_images.host.gpu_facts import engine_gpus
from torch_images.host.gpus import Request, device_requests

IMAGE = f"{TESTS}:cdi"
KIND = "nvidia.com/gpu"
SHOW = "cat /standin; echo >/dev/standin && echo the device was written"


@dataclass(frozen=True)
class Cdi:
    """An engine that reads specs in `folder`."""

    address: str
    folder: Path
    engine: Engine

    def requests(self, words: str) -> list[Request]:
        """What --gpus of a verb asks this engine for."""
        return device_requests(words, engine_gpus(self.engine).ways)


def small_image(address: str) -> None:
    """Give an engine an image of a few programs of this machine."""
    paths: dict[str, Path] = {}
    for name in ("sh", "cat", "sleep"):
        program = shutil.which(name)
        assert program
        paths[f"bin/{name}"] = Path(program)
        linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
        for word in linked.stdout.split():
            if word.startswith("/"):
                paths[word.lstrip("/")] = Path(word)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, path in paths.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = path.stat().st_size, 0o755
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
    command = ["docker", "--host", address, "import", "-", IMAGE]
    subprocess.run(command, input=packed.getvalue(), check=True, capture_output=True)


def written_by_setup() -> dict[str, Any]:
    """The daemon.json that scripts/setup-engine writes."""
    script = (ROOT / "scripts" / "setup-engine").read_text()
    [text] = re.findall(r"<<'JSON'\n(.*?)\nJSON\n", script, re.DOTALL)
    return dict(json.loads(text))


def connected(address: str) -> Engine:
    """The engine at an address, as a verb finds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", address)
        return connect()


def edits(name: str, mounted: Path) -> dict[str, object]:
    """What a container with a device gets."""
    mount = {"hostPath": str(mounted), "containerPath": "/standin", "options": ["ro", "bind"]}
    node = {"path": "/dev/standin", "hostPath": "/dev/null"}
    return {"env": [f"STANDIN_{name.upper()}=yes"], "mounts": [mount], "deviceNodes": [node]}


@pytest.fixture(scope="module")
def cdi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cdi]:
    folder = tmp_path_factory.mktemp("cdi")
    file = folder / "standin.txt"
    file.write_text("a file of the host\n")
    files = {"0": file, "1": file, "all": file, "gone": folder / "libcuda.so.570.86.15"}
    spec = {
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "devices": [{"name": n, "containerEdits": edits(n, path)} for n, path in files.items()],
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
    }
    (folder / "nvidia.json").write_text(json.dumps(spec))
    settings = {**written_by_setup(), "cdi-spec-dirs": [str(folder)]}
    with second_engine(runs=True, settings=settings) as address:
        small_image(address)
        yield Cdi(address, folder, connected(address))


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("all", {"ALL"}),
        ("device=1", {"1"}),
        ("2", {"0", "1"}),
        (f"{KIND}=0", {"0"}),
        (f"{KIND}=1,{KIND}=0", {"0", "1"}),
    ],
)
def test_a_container_gets_what_the_spec_says(cdi: Cdi, words: str, given: set[str]) -> None:
    """Variables, a file and a device; by Docker's own words and by names."""
    options = {"device_requests": cdi.requests(words), "network_mode": "none"}
    with cdi.engine.container(IMAGE, **options) as container:
        # `docker exec` has the variables of the image only, in Docker 26.1.5.
        variables = container.exec("cat", "/proc/1/environ").output.split("\0")
        done = container.exec("sh", "-c", SHOW)
    names = {word.removeprefix("STANDIN_") for word in variables if word.startswith("STANDIN_")}
    assert names == {f"{name}=yes" for name in given}
    assert "NVIDIA_VISIBLE_DEVICES=void" in variables
    assert done.output == "a file of the host\nthe device was written\n"


def test_docker_run_does_the_same(cdi: Cdi) -> None:
    """The command that docs/gpu.md and `doctor` name."""
    command = ["docker", "--host", cdi.address, "run", "--rm", "--network=none"]
    command += [f"--device={KIND}=all", IMAGE, "sh", "-c", SHOW]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "a file of the host\nthe device was written\n"


def test_compose_does_the_same(cdi: Cdi, tmp_path: Path) -> None:
    """Its example for GPUs by CDI, over the one without."""
    (tmp_path / "compose").mkdir()
    for name in ("compose.yaml", "compose-cdi.yaml"):
        shutil.copy(ROOT / "docs" / "examples" / "places" / name, tmp_path)
    changed = {"image": IMAGE, "command": ["sh", "-c", SHOW], "network_mode": "none"}
    (tmp_path / "here.yaml").write_text(json.dumps({"services": {"train": changed}}))
    command = [*compose_command(tmp_path / "compose"), f"--project-name={TESTS}-cdi"]
    command += [f"--file={name}" for name in ("compose.yaml", "compose-cdi.yaml", "here.yaml")]
    command += ["run", "--rm", "--no-TTY", "train"]
    env = {**os.environ, "DOCKER_HOST": cdi.address}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "a file of the host\nthe device was written\n", done.stderr


def test_the_engine_says_what_it_refuses(cdi: Cdi) -> None:
    """What cannot be known before the start, such as a driver that was replaced."""
    for name, said in (
        (f"{KIND}=gone", f"the CDI spec names {cdi.folder}/libcuda.so.570.86.15, which is not th"),
        (
            f"{KIND}=7",
            f"the engine refused: unresolvable CDI devices {KIND}=7; run nvidia-ctk cdi ",
        ),
    ):
        options = {"device_requests": [{"driver": "cdi", "device_ids": [name]}]}
        with pytest.raises(EngineError) as caught, cdi.engine.container(IMAGE, **options):
            pass
        assert str(caught.value).startswith(said)


def test_the_verbs_know_the_engine(cdi: Cdi) -> None:
    """A device that no spec has is said before any image is looked at; doctor finds the way."""
    env = {"DOCKER_HOST": cdi.address}
    done = invoke("verify", "no-such-image", "--gpus", f"{KIND}=2", env=env)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: no CDI spec has {KIND}=2; did you mean '{KIND}=")
    told = json.loads(invoke("doctor", "--json", env=env).stdout)
    assert told["engine"]["specs"][0]["devices"] == [
        f"{KIND}={n}" for n in ("0", "1", "all", "gone")
    ]
    own = told["engine"]["own"]  # NVIDIA's Container Toolkit may be on this machine
    assert told["way"] == ("own" if own else "cdi")
    # Whether containers get GPUs is a matter of the driver, too.
    assert told["works"] == bool(told["driver"] or told["gpus"] or told["wsl"])


def test_an_engine_without_cdi(cdi: Cdi) -> None:
    """Both ways are refused at the start; both verbs know it before."""
    settings = {"features": {"cdi": False}, "cdi-spec-dirs": [str(cdi.folder)]}
    with second_engine(runs=True, settings=settings) as address:
        small_image(address)
        engine = connected(address)
        asked: Request = {"driver": "cdi", "device_ids": [f"{KIND}=all"]}
        options = {"device_requests": [asked]}
        with (
            pytest.raises(EngineError, match=r"^CDI is off in the engine; add "),
            engine.container(IMAGE, **options),
        ):
            pass
        env = {"DOCKER_HOST": address}
        done = invoke("bench", "no-such-image", "--gpus", f"{KIND}=all", env=env)
        assert done.returncode == 4
        assert done.stderr.startswith("error: CDI is off in the engine")
        if engine_gpus(engine).ways.own:
            return
        options = {"device_requests": [{"count": -1, "capabilities": [["gpu"]]}]}
        with (
            pytest.raises(EngineError, match=r"^the engine cannot give GPUs to containers; "),
            engine.container(IMAGE, **options),
        ):
            pass
