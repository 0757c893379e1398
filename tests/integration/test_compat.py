"""The start of containers, with stand-ins for NVIDIA's libraries and for what the kernel says.

The image is a small one, which the start does not notice. It has a compat package of a stand-in
repository, locked and built as NVIDIA's would be.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.decisions import (
    GOOGLES,
    NOTES,
    READ_ONLY,
    TABLE,
    USER,
    USER_READ_ONLY,
    VERSIONS,
    Row,
)
from tests.integration.drivers import DRIVER, FIND_LIBCUDA, compile_stubs, repository
from tests.integration.standins import replace, served, small_project
from tests.integration.support import Built, facts, invoke, running
from tests.releases import T130
from torch_images.build.job import Job
from torch_images.build.render import image_facts
from torch_images.config.choose import choose
from torch_images.config.load import load_config
from torch_images.config.types import Config
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.locks.debs import DebLock
from torch_images.locks.facts import with_facts
from torch_images.locks.files import read
from torch_images.platforms import AMD64
from torch_images.publish import tag as publish
from torch_images.verify.identify import identify
from torch_images.verify.suites import Subject, outside
from torch_images.verify.verify import claim

# Other tests build for other architectures at the same time.
CANDIDATE = f"torch-images-candidate:cu130-sm86-torch{T130}-trixie-runtime-compat"
BUILD = ("build", "--arch", "8.6", "--compat", "--unverified")
REFERENCE = "torch-images-test:compat"
LABEL = "io.github.torch-images.compat"
NVRM = {
    "open": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (t)",
    "proprietary": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Jan 9 20:50:00 UTC 2025",
}
# What a process of the container finds: the libcuda that the loader gives it, and its environment.
LOOK = (
    FIND_LIBCUDA
    + """
import json, os
names = ("LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH")
conf = "/etc/ld.so.conf.d/0-torch-images.conf"
print("LOOK", json.dumps({"libcuda": maps[0], "conf": os.path.exists(conf),
                          "env": {n: os.environ.get(n, "") for n in names}}))
"""
)


@pytest.fixture(scope="module")
def stubs(
    built: Built,
    config: Config,
    engine: Engine,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    notes = {_name(note): note for row in TABLE for note in [row.compat_note]}
    compile_stubs(engine, built.digest, folder, notes)
    for cuda in VERSIONS:
        spec = choose(config, cuda=cuda, platform=AMD64.name)
        image_json = image_facts(config, spec, [dataclasses.replace(spec, compat=True)])
        (folder / f"image-{cuda}.json").write_text(json.dumps(image_json))
    (folder / "broken.so").write_text("this is no library")
    (folder / "look.py").write_text(LOOK)
    for version, names in dict.fromkeys(VERSIONS.values(), (*notes, "broken")).items():
        for name in names:
            driver = folder / f"{name}-{version}"
            driver.mkdir()
            (driver / f"libcuda.so.{version}").write_bytes((folder / f"{name}.so").read_bytes())
            (driver / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
    (folder / "empty").mkdir()
    return folder


@dataclass(frozen=True)
class CompatProject:
    """The project whose compat packages come from the stand-in repository."""

    folder: Path
    config: Config
    digest: str


@pytest.fixture(scope="module")
def with_compat(
    stubs: Path, small_locks: Path, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CompatProject]:
    """A small image with the stand-in package: locked, built, under a name of its own."""
    scratch = tmp_path_factory.mktemp("compat")
    folder = scratch / "project"
    pages = small_project(folder, small_locks, scratch / "wheels")
    libcuda = (stubs / f"{_name(NOTES['13.0'])}.so").read_bytes()
    with repository(libcuda) as (url, key), served(pages) as index:
        config = with_facts(load_config(folder / "images.yaml"), folder / "locks")
        replace(folder, "images.yaml", config.compat.repository(AMD64), url)
        replace(folder, "images.yaml", config.compat.key, key)
        done = invoke("lock", "--select", "compat-cu130", cwd=folder)
        assert done.returncode == 0, done.stderr
        env = {"UV_DEFAULT_INDEX": index}
        done = invoke(*BUILD, "--json", cwd=folder, env=env)
        assert done.returncode == 0, done.stderr[-3000:]
        digest = json.loads(done.stdout)["images"][0]["digest"]
        engine.tag(digest, *REFERENCE.split(":"))
        engine.untag(CANDIDATE)
        yield CompatProject(
            folder, with_facts(load_config(folder / "images.yaml"), folder / "locks"), digest
        )
    engine.untag(REFERENCE)


def test_the_package_is_locked_as_apt_finds_it(with_compat: CompatProject) -> None:
    lock = read(DebLock, with_compat.folder / "locks" / "compat-cu130.json")
    [deb] = lock.debs
    expected = ("cuda-compat-13-0", f"{DRIVER}-1", "nvidia-cuda")
    assert (deb.name, deb.version, deb.archive) == expected
    assert deb.path == f"cuda-compat-13-0_{DRIVER}-1_amd64.deb"
    check = invoke("lock", "--check", "--select", "compat-cu130", cwd=with_compat.folder)
    assert (check.returncode, check.stdout) == (0, "compat-cu130: 1 unchanged\n"), check.stderr


def test_a_repository_signed_by_another_key_is_refused(with_compat: CompatProject) -> None:
    """Whoever answers, and whatever key is served beside it: the pinned fingerprint decides."""
    key = with_compat.config.compat.key
    replace(with_compat.folder, "images.yaml", key, "0" * 32 + key[-8:])
    try:
        done = invoke("lock", "--select", "compat-cu130", cwd=with_compat.folder)
    finally:
        replace(with_compat.folder, "images.yaml", "0" * 32 + key[-8:], key)
    assert done.returncode == 3, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "cuda-compat-13-0: the archive is not signed by the key that is pinned" in last


def test_the_image_says_what_it_has_and_passes(
    with_compat: CompatProject, engine: Engine, runner: Runner, workspace: Workspace
) -> None:
    """From outside, where all that the package adds is to be seen."""
    labels = engine.inspect(with_compat.digest).labels
    assert labels[LABEL] == f"{DRIVER}-1"
    note = json.loads(labels[f"{LABEL}.note"])
    assert note["driver"] == json.loads(NOTES["13.0"])["driver"]
    locks = with_compat.folder / "locks"
    own = dataclasses.replace(workspace, root=with_compat.folder, locks=locks)
    reference, planned = identify(with_compat.config, REFERENCE, own, engine)
    assert planned.spec.compat
    tags = publish.tags(with_compat.config, planned)
    assert [tag.rpartition(":")[2] for tag in tags][1:] == [
        f"{planned.spec.torch}-sm86-compat",
        "sm86-compat",
    ]
    info = engine.inspect(reference)
    expected = claim(with_compat.config, planned)
    modules = ("test_compat.py", "test_metadata.py")
    job = Job(config=with_compat.config, workspace=own, engine=engine, run=runner)
    subject = Subject(job=job, info=info, claim=expected)
    checks = outside(subject, modules).checks
    assert [check for check in checks if check.outcome == "failed"] == []
    passed = {check.name for check in checks if check.outcome == "passed"}
    assert passed >= {
        "image/test_compat/test_libraries_are_whole",
        "image/test_compat/test_note_is_the_librarys_own",
        "image/test_metadata/test_environment",
    }


def decided(row: Row) -> bool:
    """Whether only the decision is special about a row, which unit tests make for the whole table."""
    same = ("driver", "cuda", "gpus", "compat", "mode")
    plain = {name: getattr(row, name) for name in same}
    usual = Row(id=row.id, chosen=row.chosen, works=row.works, says=row.says, how=row.how, **plain)
    return row == usual and row.gpus != "hang"


# One that takes compat, one that cannot, and one that need not; and all that is laid out otherwise.
SHOWN = ("570 data centre", "570 GeForce", "580.95.05, as old as compat")
WAITS = ("12.8 on 550, NVML hangs",)  # 20 s, as that of CUDA 13.0


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=pytest.mark.slow) if row.id in WAITS else row
        for row in TABLE
        if row.id in SHOWN or not decided(row)
    ],
    ids=lambda row: row.id,
)
def test_table(row: Row, with_compat: CompatProject, stubs: Path, engine: Engine) -> None:
    done = engine.run(REFERENCE, "-c", script(row), **container(row, stubs))
    assert done.code == 0, done.output
    *lines, last = done.output.strip().splitlines()
    look = json.loads(last.removeprefix("LOOK "))
    # A read-only container is also told what torch.compile lacks there.
    text = "\n".join(line for line in lines if "torch.compile" not in line)
    assert [part for part in row.says if part not in text] == [], text
    failed = "cannot work" in text or "PyTorch runs on the CPU" in text
    assert failed == (not row.works), text
    own = f"/opt/cuda-compat/{row.cuda}"
    host = row.folder
    toolkits = f"/usr/local/cuda-{row.cuda}/compat"
    untouched = toolkits if row.toolkit else host if row.library else "none"
    folder = {"compat": own, "host": host}.get(row.chosen, untouched) if row.works else untouched
    assert look["libcuda"].startswith(folder), text
    how = row.how
    if row.stale == "cache" and row.chosen == "compat":
        how = "loader cache"
    assert look["conf"] == (how == "loader cache" or (bool(row.stale) and USER in row.runs_as))
    path = look["env"]["LD_LIBRARY_PATH"]
    elsewhere = isinstance(row.library, str)
    both = f"{own}:{host}" if elsewhere and row.chosen == "compat" else folder
    if how == "environment":
        assert path == both
        assert look["env"]["TRITON_LIBCUDA_PATH"] == folder
    elif elsewhere and row.listed:
        assert path == both
    else:
        assert path == ("/mine" if row.stale == "environment" else "")


def test_starts_of_a_slow_host_choose_alike(
    with_compat: CompatProject, stubs: Path, engine: Engine
) -> None:
    """A trial took 0.25 to 0.87 s on real hosts, and a start gave up after 0.38."""
    row = next(row for row in TABLE if row.id == "570 data centre")
    options, choices = container(row, stubs), set()
    for delay in ("0", "0.3", "0.6", "0.9"):
        options["environment"] = {**options["environment"], "STUB_DELAY": delay}
        choices.add(engine.run(REFERENCE, "-c", script(row), **options).output)
    assert len(choices) == 1
    assert "the compat library" in choices.pop()


COMPAT_ON_570, GKE = (
    next(row for row in TABLE if row.id == name) for name in ("570 data centre", "580, GKE")
)
OURS = f"/opt/cuda-compat/13.0/libcuda.so.{DRIVER}"
REACHED = [(COMPAT_ON_570, OURS), (GKE, f"{GOOGLES}/libcuda.so.1")]
LOOKS = ("/usr/bin/python3", "/look.py")
SHELLS = {
    "bash script": ("bash", "-c", shlex.join(LOOKS)),
    "bash login": ("bash", "-lc", shlex.join(LOOKS)),
    "sh login": ("sh", "-lc", shlex.join(LOOKS)),
    "through the entrypoint": ("torch-entrypoint", *LOOKS),
}


@contextlib.contextmanager
def resting(row: Row, stubs: Path, *command: str) -> Iterator[str]:
    """A container of a row that stays."""
    settings = container(row, stubs)
    options = ["--entrypoint=/bin/sh", "--cap-add=SYS_ADMIN", "--security-opt=apparmor=unconfined"]
    options += [f"--volume={volume}" for volume in settings["volumes"]]
    options += [f"--env={name}={value}" for name, value in settings["environment"].items()]
    options += ["--read-only"] if settings["read_only"] else []
    with running(REFERENCE, "-c", script(row, command), options=tuple(options)) as name:
        yield name


def looked(name: str, *command: str, user: str = "0") -> str:
    """Which libcuda a command in a running container gets."""
    done = subprocess.run(
        ["docker", "exec", "--user", user, name, *command],
        capture_output=True,
        text=True,
        check=True,
    )
    return str(json.loads(done.stdout.removeprefix("LOOK "))["libcuda"])


STAYS = ("sh", "-c", "echo ready; exec sleep infinity")


@pytest.mark.parametrize(("row", "library"), REACHED, ids=["compat", "GKE"])
def test_roots_choice_reaches_every_process(
    with_compat: CompatProject, stubs: Path, row: Row, library: str
) -> None:
    """Without any shell, and other users, too: it is in the loader's cache."""
    with resting(row, stubs, *STAYS) as name:
        for user in ("0", "1000:1000"):
            for command in (LOOKS, *SHELLS.values(), ("env", "-i", *LOOKS)):
                assert looked(name, *command, user=user) == library


@pytest.mark.parametrize("runs_as", [USER, USER_READ_ONLY])
@pytest.mark.parametrize(("row", "library"), REACHED, ids=["compat", "GKE"])
def test_a_users_choice_reaches_every_shell(
    with_compat: CompatProject, stubs: Path, row: Row, library: str, runs_as: str
) -> None:
    with resting(dataclasses.replace(row, runs_as=runs_as), stubs, *STAYS) as name:
        for command in SHELLS.values():
            assert looked(name, *command, user="1000:1000") == library


def test_a_shell_chooses_where_the_entrypoint_was_replaced(
    with_compat: CompatProject, stubs: Path, engine: Engine
) -> None:
    """The host's own libcuda until then, and nothing broken."""
    row = COMPAT_ON_570
    lay_out = script(row, STAYS).partition("exec ")[0]
    options = {**container(row, stubs), "environment": {"STUB_GPUS": "2"}}
    both = f"{lay_out}\n{shlex.join(LOOKS)}\nbash -lc {shlex.quote(shlex.join(LOOKS))}"
    done = engine.run(REFERENCE, "-c", both, **options)
    first, second = (json.loads(s.removeprefix("LOOK ")) for s in done.output.splitlines())
    assert first["libcuda"] == "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    assert second["libcuda"] == OURS


def _name(note: str) -> str:
    """The stub that has a note."""
    known = {NOTES["13.0"]: "cu130", NOTES["12.8"]: "cu128", "": "silent"}
    return known.get(note, "garbled")


def container(row: Row, stubs: Path) -> dict[str, Any]:
    """How to start the container of a row."""
    volumes = {
        "/look.py": stubs / "look.py",
        "/usr/local/lib/torch-images/image.json": stubs / f"image-{row.cuda}.json",
    }
    if row.library:
        volumes[f"{row.folder}/libcuda.so.1"] = stubs / "host.so"
    if row.library or row.node:
        volumes[f"{row.folder}/libnvidia-ml.so.1"] = stubs / "libnvidia-ml.so.1"
    name = "broken" if row.answer == "broken" else _name(row.compat_note)
    library = stubs / f"{name}-{VERSIONS[row.cuda]}"
    if not row.compat:
        volumes["/opt/cuda-compat"] = stubs / "empty"
    elif name != "cu130":  # else it is the package in the image
        volumes[f"/opt/cuda-compat/{row.cuda}"] = library
    if row.toolkit:
        volumes[f"/usr/local/cuda-{row.cuda}/compat"] = library
    devices = [*(["/dev/nvidia0"] if row.node else []), *(["/dev/dxg"] if row.wsl else [])]
    hangs, elsewhere = row.gpus == "hang", isinstance(row.library, str)
    return facts(
        entrypoint=["/bin/sh"],
        cap_add=["SYS_ADMIN"],  # to lay over /proc what the kernel module would say
        security_opt=["apparmor=unconfined"],
        volumes=[f"{source}:{target}:ro" for target, source in volumes.items()],
        devices=[f"/dev/null:{device}:rw" for device in devices],
        read_only=row.runs_as in {READ_ONLY, USER_READ_ONLY} and not row.stale,
        environment={
            "STUB_DRIVER": row.driver,
            "STUB_GPUS": "hang" if hangs else ",".join(map(str, row.gpus)),
            "COMPAT_ANSWER": "" if row.answer == "broken" else row.answer,
            "CUDA_COMPAT": row.mode,
            **({"LD_LIBRARY_PATH": row.folder} if elsewhere and row.listed else {}),
        },
    )


def script(row: Row, command: Sequence[str] = LOOKS) -> str:
    """What a container does as root before its entrypoint: lay out the host, drop privileges."""
    lines = ["set -e"]
    if row.source in NVRM:
        text = shlex.quote(NVRM[row.source].format(row.driver))
        lines += [
            "mount -t tmpfs tmpfs /proc/driver",
            f"mkdir /proc/driver/nvidia; echo {text} >/proc/driver/nvidia/version",
        ]
    if row.source == "sys":
        lines += [
            "mount -t tmpfs tmpfs /sys/module",
            f"mkdir /sys/module/nvidia; echo {row.driver} >/sys/module/nvidia/version",
        ]
    if row.toolkit:
        folder = f"/usr/local/cuda-{row.cuda}/compat"
        lines.append(f"echo {folder} >/etc/ld.so.conf.d/00-compat-1f2e.conf; ldconfig")
    own = f"/opt/cuda-compat/{row.cuda}"
    if row.stale == "cache":
        lines.append(f"echo {own} >/etc/ld.so.conf.d/0-torch-images.conf; ldconfig")
    if row.stale == "environment":
        lines.append(f"export LD_LIBRARY_PATH=/mine:{own} TRITON_LIBCUDA_PATH={own}")
    drop = ""
    if USER in row.runs_as:
        drop = "setpriv --reuid=1000 --regid=1000 --clear-groups --bounding-set=-all -- "
    start = f"/usr/bin/tini -s -- torch-entrypoint {shlex.join(command)}"
    return "\n".join([*lines, f"exec {drop}{start}"])
