"""Images of another processor, on a real engine: by QEMU, and where nothing emulates it."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.support import ROOT, TESTS, open_folder
from torch_images.errors import EngineError
from torch_images.host.emulation import check_platform
from torch_images.host.engine import Engine
from torch_images.platforms import AMD64, ARM64, native

FOREIGN = AMD64 if native() == ARM64 else ARM64
BUSYBOX = "/bin/busybox"
# A program for a processor that there is not: an ELF header with the number 0xffff.
NOWHERE = b"\x7fELF\2\1\1" + bytes(9) + b"\2\0\xff\xff\1\0\0\0" + bytes(40)


def imported(archive: bytes, name: str) -> str:
    """An image of the foreign platform from a tar; its name."""
    image = f"{TESTS}-emulation:{name}"
    command = ["docker", "import", "--platform", FOREIGN.name, "-", image]
    subprocess.run(command, input=archive, check=True, capture_output=True)
    return image


@pytest.fixture(scope="module")
def emulator() -> None:
    """What scripts/setup-engine makes of this machine."""
    command = [str(ROOT / "scripts/setup-engine"), "--yes", "--platform", FOREIGN.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def foreign(emulator: None, engine: Engine) -> Iterator[str]:
    """A small image of Debian's packages for the other processor."""
    with open_folder() as folder:
        tree = folder / "tree.tar"
        command = ["mmdebstrap", "--variant=extract", "--include=busybox-static"]
        command += [f"--architectures={FOREIGN.architecture}", "--format=tar", "bookworm", "-"]
        command += os.environ.get("TORCH_IMAGES_MIRROR", "").split()
        env = {**os.environ, "TMPDIR": str(folder)}
        with tree.open("wb") as stream:
            done = subprocess.run(
                command, env=env, stdout=stream, stderr=subprocess.PIPE, text=True, check=False
            )
        assert done.returncode == 0, done.stderr[-2000:]
        image = imported(tree.read_bytes(), "debian")
    yield image
    engine.untag(image)


@pytest.fixture(scope="module")
def nowhere(engine: Engine) -> Iterator[str]:
    """An image whose only program is for a processor that nothing emulates."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tree:
        for name in ("bin/sh", "bin/sleep"):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(NOWHERE), 0o755
            tree.addfile(member, io.BytesIO(NOWHERE))
    image = imported(stream.getvalue(), "nowhere")
    yield image
    engine.untag(image)


def test_check_platform_of_a_ready_machine(emulator: None) -> None:
    check_platform(FOREIGN)
    # mmdebstrap asks this before it makes a base.
    probe = ["arch-test", FOREIGN.architecture]
    assert subprocess.run(probe, check=False, capture_output=True).returncode == 0
    # It is quiet where nothing is to be done.
    command = [str(ROOT / "scripts/setup-engine"), "--platform", FOREIGN.name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stdout + done.stderr


def test_run_for_another_processor(foreign: str, engine: Engine) -> None:
    command = ["docker", "run", "--rm", "--network=none", "--platform", FOREIGN.name, foreign]
    done = subprocess.run([*command, BUSYBOX, "uname", "-m"], capture_output=True, check=True)
    assert done.stdout.decode().strip() == FOREIGN.machine
    ran = engine.run(foreign, BUSYBOX, "uname", "-m", network_mode="none")
    assert (ran.code, ran.output.strip()) == (0, FOREIGN.machine)
    assert engine.inspect(foreign).size > 0


def test_build_for_another_processor(foreign: str, tmp_path: Path) -> None:
    """A builder that was there before the emulator was has it, too."""
    (tmp_path / "Dockerfile").write_text(
        f'FROM {foreign}\nRUN ["{BUSYBOX}", "sh", "-c", "echo it is $({BUSYBOX} uname -m)"]\n'
    )
    command = [
        "docker",
        "buildx",
        "build",
        "--no-cache",
        "--progress=plain",
        "--output=type=cacheonly",
    ]
    command += ["--platform", FOREIGN.name, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"it is {FOREIGN.machine}" in done.stderr


def test_run_without_emulation_is_one_line(nowhere: str, engine: Engine) -> None:
    says = (
        "^the image is for another processor than the engine's: exec /bin/s.*: exec format error;"
    )
    with pytest.raises(EngineError, match=says):
        engine.run(nowhere, "/bin/sh", network_mode="none")
    # The engine says nothing when it starts such a container.
    with engine.container(nowhere, network_mode="none") as container:
        subprocess.run(["docker", "wait", container.id], check=True, capture_output=True)
        with pytest.raises(EngineError, match=says):
            container.exec("/bin/sh")
