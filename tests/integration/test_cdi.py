"""A real engine takes the requests that `--gpus` becomes: it gives CDI devices, or says why not.

A spec for nvidia.com/gpu stands in for NVIDIA's: its devices are variables and a file. The engine is
a second one, whose folder of specs is the test's own: on a machine with GPUs a stand-in in /etc/cdi
would take the real ones away.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import ROOT, TESTS, second_engine
from torch_images.errors import EngineError
from torch_images.host.connection import connect
from torch_images.host.engine import Engine
from torch_images.host.gpus import device_requests

pytestmark = pytest.mark.slow  # a second engine

IMAGE = f"{TESTS}:cdi"
KIND = "nvidia.com/gpu"


@dataclass(frozen=True)
class Cdi:
    """An engine that reads specs in `folder`."""

    folder: Path
    engine: Engine


def small_image(address: str) -> None:
    """Give an engine an image of a few programs of this machine."""
    paths: dict[str, Path] = {}
    for name in ("cat", "sleep"):
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
    [text] = re.findall(r"<<JSON\n(.*?)\nJSON\n", script, re.DOTALL)
    return dict(json.loads(text.replace("${keep}", "40")))


def edits(name: str, mounted: Path) -> dict[str, object]:
    """What a container with a device gets."""
    mount = {"hostPath": str(mounted), "containerPath": "/standin", "options": ["ro", "bind"]}
    return {"env": [f"STANDIN_{name.upper()}=yes"], "mounts": [mount]}


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
    }
    (folder / "nvidia.json").write_text(json.dumps(spec))
    settings = {**written_by_setup(), "cdi-spec-dirs": [str(folder)]}
    with (
        second_engine(runs=True, settings=settings) as address,
        pytest.MonkeyPatch.context() as env,
    ):
        small_image(address)
        env.setenv("DOCKER_HOST", address)
        yield Cdi(folder, connect())


def test_device_requests_give_the_listed_devices(cdi: Cdi) -> None:
    options = {"device_requests": device_requests(f"{KIND}=1,{KIND}=0"), "network_mode": "none"}
    with cdi.engine.container(IMAGE, **options) as container:
        # `docker exec` has the variables of the image only, in Docker 26.1.5.
        variables = container.exec("cat", "/proc/1/environ").output.split("\0")
        done = container.exec("cat", "/standin")
    assert {"STANDIN_0=yes", "STANDIN_1=yes"} <= set(variables)
    assert "STANDIN_ALL=yes" not in variables
    assert done.output == "a file of the host\n"


def test_container_refused_by_the_engine_has_a_hint(cdi: Cdi) -> None:
    """A file of a driver that was replaced, and a device that no spec has."""
    for name, message in (
        ("gone", f'error mounting "{cdi.folder}/libcuda.so.570.86.15"'),
        ("7", f"CDI device injection failed: unresolvable CDI devices {KIND}=7"),
    ):
        options = {"device_requests": device_requests(f"{KIND}={name}")}
        with pytest.raises(EngineError) as caught, cdi.engine.container(IMAGE, **options):
            pass
        assert caught.value.message.startswith(
            f"the engine cannot give the container a GPU: {message[:100]}"
        )
        assert "`nvidia-ctk cdi generate" in caught.value.hint
