"""An image from a folder alone, by plain `docker buildx build`."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from tests.decisions import NOTES
from tests.integration.drivers import repository
from tests.integration.standins import WHEEL_LOCK, commit, served, small_project
from tests.integration.standins import replace as change
from tests.integration.support import TESTS, invoke
from tests.packages import elf
from tests.releases import T130
from tests.wheels import index, make_wheel
from torch_images.config.load import load_config
from torch_images.host.engine import Engine
from torch_images.host.network import Network
from torch_images.locks.facts import with_facts
from torch_images.locks.files import dumps
from torch_images.locks.wheels import read_wheels
from torch_images.platforms import AMD64

pytestmark = pytest.mark.slow  # several builds from nothing

DEVEL = f"cu130-sm120-torch{T130}-trixie-devel-compat"
PROBE = {
    "torch_images_probe-1.0.data/scripts/probe": b"#!python\nprint(1)\n",
    "torch_images_probe-1.0.data/data/share/probe.txt": b"text",
    "torch_images_probe-1.0.dist-info/entry_points.txt": b"[console_scripts]\np = probe:main\n",
    "probe/__init__.py": b"def main(): print(2)\n",
    "probe/tests/__init__.py": b"",
}
REMOVALS = """
removals:
  always:
    - of: [torch-images-probe]
      files: [probe/tests/*]
      reason: its tests
"""
# What the engine puts into every container, whatever its image is; and where it sets the time then.
ENGINES = frozenset({".dockerenv", "etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/mtab"})
TIMED = frozenset({"dev", "dev/console", "dev/pts", "dev/shm", "etc"})
# Of the configuration: all but labels, which lack those by which `gc` knows images of ours.
CONFIG = ("Cmd", "Entrypoint", "Env", "ExposedPorts", "User", "Volumes", "WorkingDir")


@dataclass(frozen=True)
class Entry:
    """A file of an image: all that a container sees of it."""

    kind: bytes
    mode: int
    owner: tuple[int, int]
    time: float
    link: str
    attributes: tuple[tuple[str, str], ...]
    sha256: str


@dataclass(frozen=True)
class Small:
    """A project whose images are quick to build, and what its builds need.

    `variant` adds a package, a wheel and NVIDIA's compat library to its plain image. `digest` is
    that of an ordinary build of it.
    """

    folder: Path
    env: dict[str, str]
    digest: str


def tree(image: str) -> dict[str, Entry]:
    """Every file of an image by its path, as a container has it."""
    done = subprocess.run(["docker", "create", image], capture_output=True, text=True, check=True)
    name = done.stdout.strip()
    entries = {}
    try:
        with subprocess.Popen(["docker", "export", name], stdout=subprocess.PIPE) as process:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                for member in archive:
                    stream = archive.extractfile(member) if member.isreg() else None
                    entries[member.name] = Entry(
                        kind=member.type,
                        mode=member.mode,
                        owner=(member.uid, member.gid),
                        time=0 if member.name in TIMED else member.mtime,
                        link=member.linkname,
                        attributes=tuple(
                            item for item in member.pax_headers.items() if "xattr" in item[0]
                        ),
                        sha256=hashlib.sha256(stream.read()).hexdigest() if stream else "",
                    )
            assert process.stdout
            process.stdout.read()
        assert process.returncode == 0
    finally:
        subprocess.run(["docker", "rm", name], capture_output=True, check=True)
    return {path: entry for path, entry in entries.items() if path not in ENGINES}


def differences(one: str, two: str) -> list[str]:
    """What differs between two images: a line for each aspect of each path."""
    first, second = tree(one), tree(two)
    assert len(first) > 1000
    lines = [f"{path}: only in one" for path in sorted(first.keys() ^ second.keys())]
    for path in sorted(first.keys() & second.keys()):
        pair = (asdict(first[path]), asdict(second[path]))
        lines += [f"{path}: {n} {v}, {pair[1][n]}" for n, v in pair[0].items() if v != pair[1][n]]
    sys.stdout.write("\n".join(lines))  # pytest cuts a list short
    return lines


def plain_build(folder: Path, name: str, scratch: Path, network: Network) -> None:
    """What a user types who has the folder, and Docker, and nothing else."""
    command = ["docker", "buildx", "build", "--progress=plain", f"--tag={name}"]
    if network.index:
        (scratch / "index").write_text(network.index)
        command.append(f"--secret=id=index,src={scratch / 'index'}")
    if network.ca_bundle:
        command.append(f"--secret=id=ca,src={network.ca_bundle}")
    if network.on_loopback:
        command.append("--network=host")
        help_text = subprocess.run(
            ["docker", "buildx", "build", "--help"], capture_output=True, text=True, check=True
        )
        command += ["--allow=network.host"] if "--allow" in help_text.stdout else []
    command += [f"--build-arg={key}={value}" for key, value in network.proxies]
    done = subprocess.run(
        [*command, str(folder)], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def small(
    small_locks: Path, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Small]:
    scratch = tmp_path_factory.mktemp("small")
    folder = scratch / "project"
    pages = small_project(folder, small_locks, scratch / "wheels")
    (scratch / "more").mkdir()
    probe = make_wheel(scratch / "more", "torch-images-probe", "1.0", PROBE)
    pages |= index([probe, make_wheel(scratch / "more", "torch-images-more", "1.0")])
    lock = read_wheels(folder / WHEEL_LOCK)
    wheels = tuple(w for w in lock.wheels if w.name != "torch-images-probe")
    (folder / WHEEL_LOCK).write_text(
        dumps(replace(lock, wheels=tuple(sorted((*wheels, probe.locked)))))
    )
    change(folder, "images.yaml", "\npods:\n", f"{REMOVALS}\npods:\n")
    text = (folder / "images.yaml").read_text()
    devel = text.partition("  devel:\n")[2].partition("  pod:\n")[0]
    ours = "    description: x\n    packages: [jq]\n    wheels: [torch-images-more]\n"
    change(folder, "images.yaml", devel, ours)
    compat = with_facts(load_config(folder / "images.yaml"), folder / "locks").compat
    with served(pages) as url, repository(elf(NOTES["13.0"])) as (nvidia, key):
        change(folder, "images.yaml", compat.repository(AMD64), nvidia)
        change(folder, "images.yaml", compat.key, key)
        env = {"UV_DEFAULT_INDEX": url, "TORCH_IMAGES_CACHE": str(scratch / "cache")}
        names = ("base-trixie-devel", "compat-cu130")
        wheel_lock = Path(WHEEL_LOCK).stem
        done = invoke(
            "lock", "--select", ",".join((*names, f"{wheel_lock}-devel")), cwd=folder, env=env
        )
        assert done.returncode == 0, done.stderr
        commit(folder)
        words = ("--arch", "12.0", "--variant", "devel", "--compat", "--unverified")
        done = invoke("build", *words, "--json", cwd=folder, env=env)
        assert done.returncode == 0, done.stderr[-3000:]
        yield Small(folder, env, json.loads(done.stdout)["images"][0]["digest"])
    engine.untag(f"torch-images-candidate:{DEVEL}")


def test_plain_build_gives_the_same_files(small: Small, engine: Engine, tmp_path: Path) -> None:
    """Paths, kinds, modes, owners, times, links, attributes and content; nothing is left out."""
    folder = tmp_path / "out"
    words = ("render", DEVEL, "--standalone", "--output", str(folder))
    done = invoke(*words, cwd=small.folder, env=small.env)
    assert done.returncode == 0, done.stderr
    name = f"{TESTS}:standalone"
    plain_build(folder, name, tmp_path, Network(index=small.env["UV_DEFAULT_INDEX"]))
    try:
        ours = small.digest
        assert differences(ours, name) == []
        files = tree(name)
        site = "opt/venv/lib/python3.13/site-packages"
        assert f"{site}/torch_images_more.py" in files
        assert f"{site}/probe/__pycache__/__init__.cpython-313.pyc" in files
        assert f"{site}/probe/tests/__init__.py" not in files
        assert {"usr/bin/jq", "opt/cuda-compat/13.0/libcuda.so.1"} <= files.keys()
        configs = [dict(engine.inspect(image).config) for image in (ours, name)]
        for config in configs:  # BuildKit writes "/" for a base from scratch: the same folder
            config["WorkingDir"] = config["WorkingDir"] or "/"
        first, second = ({k: config.get(k) for k in CONFIG} for config in configs)
        assert first == second
    finally:
        engine.untag(name)
