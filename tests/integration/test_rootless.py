"""Our image started by Apptainer and by Podman, as a user without rights.

Both are real, and Debian's, of sid: no release of Debian has Apptainer. They run in a system of
their own that mmdebstrap makes, so nothing is installed here. NVIDIA's libraries of that system are
stand-ins, which Apptainer's `--nv` and Podman's `--device` bind as they do real ones.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.decisions import NOTES, VERSIONS
from tests.integration.drivers import FIND_LIBCUDA, compile_stubs
from tests.integration.support import ROOT, Built, as_root
from torch_images.host.engine import Engine
from torch_images.host.workspace import scratch_room

pytestmark = pytest.mark.slow  # it unpacks and compresses a whole image

PLACES = ROOT / "docs" / "examples" / "places"
COMPAT = "/opt/cuda-compat/13.0"
HOSTS = "/.singularity.d/libs"
PACKAGES = "apptainer,mount,podman,runc,squashfuse,tzdata,uidmap"
SID = ["mmdebstrap", "--variant=essential", f"--include={PACKAGES}"]
# A mirror may lag behind; who signed its lists is checked all the same.
SID += ['--aptopt=Acquire::Check-Valid-Until "false"', "sid"]
# The words after the folders run in the system of the first one, as user 1000, who has /dev/fuse.
# Apptainer refuses a root that is not mounted, and one that only chroot has made.
ENTER = """
set -eu
root=$1 work=$2
shift 2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 dev "$root/dev"
mkdir -m 1777 "$root/dev/shm"
for device in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 fuse:10:229; do
    number=${device#*:}
    mknod -m 666 "$root/dev/${device%%:*}" c "${number%:*}" "${number#*:}"
done
ln -s /proc/self/fd "$root/dev/fd"
mount --bind "$work" "$root/work"
cd "$root"
pivot_root . .
umount -l .
cd /work
exec setpriv --reuid=1000 --regid=1000 --clear-groups -- "$@"
"""
LOOK = f"""{FIND_LIBCUDA}
print("LOOK", maps[0])
"""


@dataclass(frozen=True)
class System:
    """A Debian with Apptainer and Podman: its root, and the folder that it has at /work."""

    root: Path
    work: Path

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """What a command of its user says, on both streams together."""
        base = {"HOME": "/work/home", "TMPDIR": "/work/tmp", "PATH": "/work/bin:/usr/sbin:/usr/bin"}
        command = ["unshare", "--mount", "--propagation=private", "sh", "-c", ENTER, "enter"]
        command += [str(self.root), str(self.work)]
        command += ["env", "-i", *(f"{n}={v}" for n, v in {**base, **environ}.items()), *words]
        return subprocess.run(
            as_root(*command),
            env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    """Debian's sid with both programs. Where it cannot be made, the test fails with the reason."""
    folder = Path(tempfile.mkdtemp(prefix="torch-images-test-", dir=scratch_room()))
    folder.chmod(0o755)
    machine = System(folder / "root", folder / "work")
    for name in ("home", "tmp", "bin"):
        (machine.work / name).mkdir(parents=True)
        (machine.work / name).chmod(0o777)
    machine.work.chmod(0o777)
    try:
        done = subprocess.run(
            as_root(*SID, str(machine.root)), capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.fail(f"mmdebstrap cannot make the system:\n{done.stderr[-2000:]}", pytrace=False)
        lines = "echo tester:x:1000:1000::/work/home:/bin/sh >>etc/passwd; echo tester:x:1000: >>etc/group"
        # torchrun's processes find each other by the machine's name.
        lines += '; echo 127.0.0.1 localhost "$(hostname)" >etc/hosts'
        lines += "; echo tester:100000:65536 | tee etc/subuid >etc/subgid"
        lines += "; touch etc/resolv.conf; mkdir -p work"
        lines += "; ln -sf /usr/share/zoneinfo/Etc/UTC etc/localtime; chmod 1777 tmp"
        subprocess.run(as_root("sh", "-ec", lines), cwd=machine.root, check=True)
        yield machine
    finally:
        subprocess.run(as_root("rm", "-rf", str(folder)), check=True)


@pytest.fixture(scope="module")
def drivers(
    system: System,
    built: Built,
    engine: Engine,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The host's libcuda and NVML in the system, and a newer libcuda for the image in /work/compat."""
    folder = tmp_path_factory.mktemp("stubs")
    compile_stubs(engine, built.digest, folder, {"compat": NOTES["13.0"]})
    ours = system.work / "compat"
    ours.mkdir()
    shutil.copy(folder / "compat.so", ours / f"libcuda.so.{VERSIONS['13.0']}")
    (ours / "libcuda.so.1").symlink_to(f"libcuda.so.{VERSIONS['13.0']}")
    libraries = system.root / "usr/lib/x86_64-linux-gnu"
    for source, target in (("host.so", "libcuda.so.1"), ("libnvidia-ml.so.1",) * 2):
        subprocess.run(as_root("cp", str(folder / source), str(libraries / target)), check=True)
    subprocess.run(as_root("chroot", str(system.root), "/usr/sbin/ldconfig"), check=True)


@pytest.fixture(scope="module")
def archive(system: System, built: Built) -> str:
    """What `docker save` makes of the image, as a path in the system."""
    path = system.work / "torch.tar"
    subprocess.run(["docker", "save", built.tags[0], "--output", path], check=True)
    path.chmod(0o644)
    return path.name


@pytest.fixture(scope="module")
def sif(system: System, drivers: None, archive: str) -> str:
    """The image as a SIF file."""
    fast = "--mksquashfs-args=-comp zstd -Xcompression-level 1"
    done = system.run("apptainer", "build", fast, "torch.sif", f"docker-archive:{archive}")
    assert done.returncode == 0, done.stdout[-3000:]
    (system.work / "look.py").write_text(LOOK)
    for name, text in (
        ("srun", '#!/bin/sh\nexec "$@"\n'),
        ("scontrol", "#!/bin/sh\necho localhost\n"),
    ):
        (system.work / "bin" / name).write_text(text)
        (system.work / "bin" / name).chmod(0o755)
    for name in ("train.py", "slurm-apptainer.sbatch"):
        shutil.copy(PLACES / name, system.work)
    return "torch.sif"


LOOKS = ("/usr/bin/python3", "/work/look.py")


def started(system: System, sif: str, driver: str, *words: str, how: str = "exec") -> list[str]:
    """What a container says on a host with a data-centre GPU and this driver, in lines."""
    binds = f"/work:/work,/work/compat:{COMPAT}"
    command = ("apptainer", "--quiet", how, "--nv", "--bind", binds, sif, *words)
    done = system.run(*command, STUB_DRIVER=driver, STUB_GPUS="2")
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("driver", "says", "folder"),
    [
        ("570.86.15", f"CUDA 13.0 uses the compat library {VERSIONS['13.0']}: ", COMPAT),
        ("580.95.05", "CUDA 13.0 uses the host's driver 580.95.05: it runs", HOSTS),
    ],
)
def test_start_chooses(system: System, sif: str, driver: str, says: str, folder: str) -> None:
    *lines, last = started(system, sif, driver, "torch-entrypoint", *LOOKS)
    assert [line for line in lines if line.startswith(f"torch-images: {says}")], lines
    assert last.startswith(f"LOOK {folder}/libcuda.so.")


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (("bash", "-c", shlex.join(LOOKS)), COMPAT),
        (("bash", "-lc", shlex.join(LOOKS)), COMPAT),
        (LOOKS, HOSTS),
    ],
    ids=["bash", "login", "program"],
)
def test_without_the_entrypoint_shells_choose(
    system: System, sif: str, words: tuple[str, ...], folder: str
) -> None:
    lines = started(system, sif, "570.86.15", *words)
    assert lines[-1].startswith(f"LOOK {folder}/libcuda.so.")


def test_run_starts_the_entrypoint(system: System, sif: str) -> None:
    *lines, last = started(system, sif, "570.86.15", *LOOKS, how="run")
    assert any("torch-images: CUDA 13.0 uses the compat library" in line for line in lines)
    assert not any("tini" in line.lower() for line in lines)  # it is not process 1, and reaps there
    assert last.startswith(f"LOOK {COMPAT}/libcuda.so.")


def test_without_nv_the_start_asks_for_it(system: System, sif: str) -> None:
    done = system.run("apptainer", "exec", sif, "torch-entrypoint", "true")
    assert done.returncode == 0, done.stdout
    line = "No GPU in this container: PyTorch runs on the CPU; to use a GPU, start it with --nv\n"
    assert line in done.stdout


# A device as NVIDIA's toolkit describes it to Podman, with the stand-ins for its libraries.
CDI = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {
            "name": "all",
            "containerEdits": {
                "mounts": [
                    {"hostPath": path, "containerPath": path, "options": ["ro", "bind"]}
                    for path in (
                        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
                        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
                    )
                ]
            },
        }
    ],
}


@pytest.fixture(scope="module")
def podman(system: System, drivers: None, archive: str, built: Built) -> Iterator[tuple[str, ...]]:
    """The beginning of a command that runs the image with Podman's words for GPUs."""
    (system.work / "nvidia.json").write_text(json.dumps(CDI))
    copy = f"mkdir -p etc/cdi && cp {shlex.quote(str(system.work))}/nvidia.json etc/cdi"
    subprocess.run(as_root("sh", "-ec", copy), cwd=system.root, check=True)
    done = system.run("podman", "load", "--quiet", "--input", archive)
    assert done.returncode == 0, done.stdout[-3000:]
    # crun refuses this machine's control groups where version 1 is mounted beside version 2.
    run = ("podman", "--runtime=runc", "run", "--rm", "--network=none")
    mounted = "--volume=/work/look.py:/look.py:ro"
    yield (*run, "--device=nvidia.com/gpu=all", mounted, built.tags[0])
    # It keeps a process that holds its user namespace; this ends it.
    system.run("podman", "system", "migrate")


def test_podman_without_rights_starts_the_entrypoint(
    system: System, podman: tuple[str, ...]
) -> None:
    """Root of the container, who is nobody outside, makes the choice as under Docker."""
    *run, image = podman
    (system.work / "look.py").write_text(LOOK)
    compat = f"--volume=/work/compat:{COMPAT}:ro"
    options = ("--env=STUB_DRIVER=570.86.15", "--env=STUB_GPUS=2")
    done = system.run(*run, compat, *options, image, "/usr/bin/python3", "/look.py")
    assert done.returncode == 0, done.stdout
    assert "torch-images: CUDA 13.0 uses the compat library" in done.stdout
    assert f"LOOK {COMPAT}/libcuda.so." in done.stdout
