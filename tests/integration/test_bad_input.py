"""What goes wrong outside the project ends in one line, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.standins import WHEEL_LOCK as LOCK
from tests.integration.standins import small_project
from tests.integration.support import ROOT, Built, as_root, images, invoke, open_folder, share
from tests.servers import closed_port, web_server
from torch_images.build.build import build
from torch_images.build.job import BuildOptions, Job
from torch_images.build.plan import plan_images
from torch_images.config.choose import choose
from torch_images.config.load import load_config
from torch_images.config.types import Config
from torch_images.errors import DiskError
from torch_images.fetch.apt import Resolver
from torch_images.fetch.bootstrap import BaseMaker
from torch_images.fetch.tools import install_tools
from torch_images.host.engine import Engine
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.locks.debs import DebLock
from torch_images.locks.facts import with_facts
from torch_images.locks.files import read
from torch_images.locks.wheels import LockedWheel, read_wheels

BUILD = ("build",)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.strip().splitlines()[-1]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 160 MB that belongs to this user."""
    options = f"size=160m,uid={os.getuid()},gid={os.getgid()}"
    with open_folder() as folder:
        mount = as_root("mount", "-t", "tmpfs", "-o", options, "none", str(folder))
        subprocess.run(mount, check=True)
        try:
            yield folder
        finally:
            subprocess.run(as_root("umount", str(folder)), check=True)


def entry(wheel: LockedWheel) -> str:
    """The line of a wheel in the lock."""
    lines = (ROOT / LOCK).read_text().splitlines(keepends=True)
    return next(line for line in lines if wheel.filename in line)


def test_build_with_a_wheel_of_another_hash(
    built: Built, engine: Engine, project: Callable[..., Path]
) -> None:
    lock = read_wheels(ROOT / LOCK)
    wheel = next(w for w in lock.wheels if w.name == "typing-extensions")
    folder = project((LOCK, wheel.sha256, "0" * 64))
    before = images(engine)
    done = invoke(*BUILD, cwd=folder)
    assert done.returncode == 3
    assert last_line(done) == (
        f"error: typing-extensions {wheel.version} is not the locked file: expected "
        f"sha256:{'0' * 64}, found sha256:{wheel.sha256}; the server has another one; if that "
        "is intended, run `invoke lock --renew --all`"
    )
    assert images(engine) == before


def test_build_without_index(built: Built, engine: Engine, project: Callable[..., Path]) -> None:
    lock = read_wheels(ROOT / LOCK)
    wheel = next(w for w in lock.wheels if w.name == "fsspec")
    folder = project((LOCK, entry(wheel), ""))
    before = images(engine)
    index = f"http://127.0.0.1:{closed_port()}/simple"
    done = invoke(*BUILD, cwd=folder, env={"UV_DEFAULT_INDEX": index, "UV_HTTP_RETRIES": "0"})
    assert done.returncode == 6, done.stderr[-2000:]
    assert last_line(done).startswith("error: the package index's page of ")
    assert "Connection refused" in last_line(done)
    assert images(engine) == before


def test_base_on_a_full_disk(
    built: Built,
    config: Config,
    small_disk: Path,
    workspace: Workspace,
    runner: Runner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", str(small_disk))
    share(workspace, tmp_path, "debs")
    resolver = Resolver(root=ROOT, network=workspace.network, run=runner)
    lock = read(DebLock, workspace.locks / "base-trixie.json")
    with pytest.raises(DiskError, match="the disk filled up while making base trixie"):
        BaseMaker(cache=tmp_path, resolver=resolver).base(choose(config).base, lock)
    assert [p for p in (tmp_path / "bases").iterdir() if p.is_dir()] == []
    assert list(small_disk.iterdir()) == []


def test_build_uses_a_mirror_of_the_index(
    monkeypatch: pytest.MonkeyPatch,
    engine: Engine,
    runner: Runner,
    workspace: Workspace,
    small_locks: Path,
    tmp_path: Path,
) -> None:
    """Packages that only an index on loopback has are installed; its address stays out.

    The wheels are stand-ins: what is tested is the way to the index, not the content.
    The image takes the way of builders outside the engine: an archive that is loaded afterwards.
    """
    monkeypatch.setattr("torch_images.build.job.is_remote", lambda *_: True)
    folder = tmp_path / "small"
    pages = small_project(folder, small_locks, tmp_path / "wheels")
    config = with_facts(load_config(folder / "images.yaml"), folder / "locks")
    for tools in ("tools-build", "tools-sbom"):  # the index on loopback does not have them
        install_tools(tools, workspace, runner)
    with web_server(pages) as (url, _):
        index = f"{url}/simple"
        network = Network(ca_bundle=workspace.network.ca_bundle, index=index)
        copy = dataclasses.replace(workspace, root=folder, network=network, locks=folder / "locks")
        planned = plan_images(config, [choose(config)], copy.root, copy.locks)
        options = BuildOptions()
        job = Job(config=config, workspace=copy, engine=engine, run=runner, options=options)
        [image] = [result.plan for result in build(job, planned)]
    try:
        command = ("python", "-c", "import torch_images_probe as p; print(p.ANSWER)")
        assert engine.run(image.candidate, *command, entrypoint=[""]).output.strip() == "42"
        search = ("grep", "-rlF", index, "/opt/venv/pyvenv.cfg", "/etc", "/root", "/var", "/run")
        assert engine.run(image.candidate, *search, entrypoint=[""]).output.strip() == ""
        assert index not in str(engine.inspect(image.candidate))
    finally:
        engine.untag(image.candidate)
        shutil.rmtree(folder)


@pytest.mark.slow  # most of a real image is made again
def test_a_killed_build_is_safe_to_repeat(
    built: Built,
    engine: Engine,
    runner: Runner,
    workspace: Workspace,
    project: Callable[..., Path],
) -> None:
    """Killed while it compiles what wheels have: no tag moves, and the same build succeeds."""
    lock = read_wheels(ROOT / LOCK)
    wheel = next(w for w in lock.wheels if w.name == "networkx")
    folder = project((LOCK, entry(wheel), ""))
    before = images(engine)
    killed = subprocess.Popen(
        [sys.executable, "-m", "invoke", *BUILD],
        cwd=folder,
        env={**os.environ, "TORCH_IMAGES_LOCKS": str(folder / "locks")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert killed.stderr is not None
    assert any("/run/build/compile-wheels" in line for line in killed.stderr)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.stderr.close()
    assert killed.wait() == -signal.SIGKILL
    assert images(engine) == before

    config = with_facts(load_config(folder / "images.yaml"), folder / "locks")
    copy = dataclasses.replace(workspace, root=folder, locks=folder / "locks")
    [image] = plan_images(config, [choose(config)], copy.root, copy.locks)
    job = Job(config=config, workspace=copy, engine=engine, run=runner)
    [result] = build(job, [image])
    assert engine.inspect(image.candidate).id == result.digest
    engine.untag(image.candidate)
