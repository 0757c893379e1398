"""What goes wrong outside the project ends in one line, and leaves nothing behind."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.support import ROOT, Built, invoke
from torch_images.base import bootstrap
from torch_images.build import BuildOptions, build, check_disk, plan
from torch_images.config import Config, load_config
from torch_images.engine import Engine
from torch_images.errors import DiskError, NetworkError
from torch_images.lock import LockedWheel, WheelLock, format_lock, read_lock
from torch_images.matrix import choose
from torch_images.network import Network
from torch_images.runner import Runner
from torch_images.workplace import Workplace

LOCK = "locks/wheel-cu130-py311.txt"
BUILD = ("build", "--cuda", "13.0", "--arch", "12.0", "--progress", "plain")


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.strip().splitlines()[-1]


def closed_port() -> int:
    """A port of the loopback interface on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_wheel_whose_hash_differs(
    built: dict[str, Built], engine: Engine, project: Callable[..., Path]
) -> None:
    lock = read_lock(ROOT / LOCK)
    wheel = next(w for w in lock.wheels if w.name == "typing-extensions")
    folder = project((LOCK, wheel.sha256, "0" * 64))
    before = engine.tags("torch-")
    done = invoke(*BUILD, cwd=folder)
    assert done.returncode == 3
    assert last_line(done) == (
        f"error: typing-extensions=={wheel.version} is not the wheel that was locked: expected "
        f"sha256:{'0' * 64}, found sha256:{wheel.sha256}; the index serves another file; if that "
        "is meant, run `invoke lock`"
    )
    assert engine.tags("torch-") == before


def test_an_unreachable_index(
    built: dict[str, Built], engine: Engine, project: Callable[..., Path]
) -> None:
    lock = read_lock(ROOT / LOCK)
    wheel = next(w for w in lock.wheels if w.name == "setuptools")
    folder = project((LOCK, f"# {wheel.size} bytes, {wheel.filename}\n{wheel.line}\n", ""))
    before = engine.tags("torch-")
    index = f"http://127.0.0.1:{closed_port()}/simple"
    done = invoke(*BUILD, cwd=folder, env={"UV_DEFAULT_INDEX": index, "UV_HTTP_RETRIES": "0"})
    assert done.returncode == 6, done.stderr[-2000:]
    assert last_line(done).startswith("error: a package index or registry could not be reached")
    assert engine.tags("torch-") == before


def test_an_unreachable_debian_mirror(config: Config, tmp_path: Path, runner: Runner) -> None:
    mirror = f"http://127.0.0.1:{closed_port()}/debian"
    with pytest.raises(NetworkError, match="the Debian mirror could not be reached"):
        bootstrap(config.bases[0], cache=tmp_path, mirrors=(mirror,), network=Network(), run=runner)
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == []


def test_a_disk_that_fills_up_while_the_base_is_made(
    config: Config, small_disk: Path, place: Workplace, runner: Runner
) -> None:
    with pytest.raises(DiskError, match="the disk filled up while base bookworm was made"):
        bootstrap(config.bases[0], cache=small_disk, network=place.network, run=runner)
    assert [p for p in small_disk.iterdir() if p.is_dir()] == []


def test_a_disk_that_is_too_small(config: Config, small_disk: Path, place: Workplace) -> None:
    with pytest.raises(DiskError, match=r"needs about \d+ GB, .* has 0\.1 GB free"):
        check_disk(small_disk, plan([choose(config)], place.root))


def test_a_builder_that_does_not_exist() -> None:
    done = invoke(*BUILD, "--builder", "nobody")
    assert done.returncode == 4
    assert last_line(done) == "error: no builder 'nobody'; see `docker buildx ls`"


def test_an_engine_without_buildx(tmp_path: Path) -> None:
    """A docker client that finds no plugins, as Debian 12's own packages install it."""
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho \"docker: '$1' is not a docker command.\" >&2\nexit 1\n")
    docker.chmod(0o755)
    done = invoke(*BUILD, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert done.returncode == 4
    assert last_line(done).startswith(
        "error: docker buildx is not installed; install docker-buildx"
    )


def make_wheel(folder: Path, name: str, version: str) -> LockedWheel:
    """A wheel with one module, on a page of the simple index (PEP 503) in `folder`."""
    module = name.replace("-", "_")
    filename, info = f"{module}-{version}-py3-none-any.whl", f"{module}-{version}.dist-info"
    files = {
        f"{module}.py": b"ANSWER = 42\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    index = folder / "simple" / name
    index.mkdir(parents=True)
    with zipfile.ZipFile(index / filename, "w") as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path), data)
    data = (index / filename).read_bytes()
    (index / "index.html").write_text(f'<a href="{filename}">{filename}</a>')
    return LockedWheel(
        name=name,
        version=version,
        filename=filename,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


@pytest.mark.parametrize("driver", ["docker", "remote"])
def test_a_mirror_of_the_index_is_used(
    driver: str,
    monkeypatch: pytest.MonkeyPatch,
    engine: Engine,
    runner: Runner,
    place: Workplace,
    project: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """Packages that only an index on loopback has are installed; its address stays out.

    The wheels are stand-ins made here: what is tested is the way to the index, not the content.
    "remote" takes the way of builders outside the engine: an archive that is loaded afterwards.
    """
    monkeypatch.setattr("torch_images.build.driver", lambda *_: driver)
    wanted = (("torch", "2.11.0"), ("triton", "3.6.0"), ("torch-images-probe", "1.0"))
    wheels = tuple(make_wheel(tmp_path, name, version) for name, version in wanted)
    folder = project()
    date = read_lock(folder / LOCK).date
    (folder / LOCK).write_text(format_lock(WheelLock(date=date, python="3.11", wheels=wheels)))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        index = f"http://127.0.0.1:{server.server_port}/simple"
        network = Network(ca_bundle=place.network.ca_bundle, index=index)
        [image] = plan([choose(load_config(folder / "images.yaml"), arch="12.0")], folder)
        copy = Workplace(root=folder, cache=place.cache, network=network)
        config = load_config(folder / "images.yaml")
        build(config, [image], copy, BuildOptions(progress="plain"), engine=engine, run=runner)
        server.shutdown()
    try:
        command = ("python", "-c", "import torch_images_probe as p; print(p.ANSWER)")
        assert engine.run(image.candidate, *command).output.strip() == "42"
        search = ("grep", "-rlF", index, "/opt/venv/pyvenv.cfg", "/etc", "/root", "/var", "/run")
        assert engine.run(image.candidate, *search).output.strip() == ""
        assert index not in str(engine.inspect(image.candidate))
    finally:
        engine.untag(image.candidate)
        shutil.rmtree(folder)


def test_a_killed_build_is_safe_to_repeat(
    built: dict[str, Built],
    engine: Engine,
    runner: Runner,
    place: Workplace,
    project: Callable[..., Path],
) -> None:
    """Killed while wheels are being installed: no tag moves, and the same build then succeeds."""
    lock = read_lock(ROOT / LOCK)
    wheel = next(w for w in lock.wheels if w.name == "networkx")
    folder = project((LOCK, f"# {wheel.size} bytes, {wheel.filename}\n{wheel.line}\n", ""))
    before = {tag: engine.inspect(tag).id for tag in engine.tags("torch-")}
    killed = subprocess.Popen(
        [sys.executable, "-m", "invoke", *BUILD],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert killed.stderr is not None
    assert any("Resolved" in line for line in killed.stderr)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.stderr.close()
    assert killed.wait() == -signal.SIGKILL
    assert {tag: engine.inspect(tag).id for tag in engine.tags("torch-")} == before

    config = load_config(folder / "images.yaml")
    [image] = plan([choose(config, arch="12.0")], folder)
    copy = Workplace(root=folder, cache=place.cache, network=place.network)
    [result] = build(config, [image], copy, BuildOptions(), engine=engine, run=runner)
    assert engine.inspect(image.candidate).id == result.digest
    engine.untag(image.candidate)
