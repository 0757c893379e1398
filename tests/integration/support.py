"""What integration tests share beside fixtures."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import closed_port

ROOT = Path(__file__).resolve().parents[2]
SELECT = "cu*-sm120-wheel-bookworm-runtime"


@dataclass(frozen=True)
class Built:
    """One image as `invoke build --json` reported it."""

    id: str
    digest: str
    tags: tuple[str, ...]
    observed: dict[str, str]
    checks: dict[str, int]


def invoke(
    *words: str, cwd: Path = ROOT, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a verb as a user does, with its output captured.

    In a copy of the project it reads the locks of the copy, unless `env` says otherwise.
    """
    own = {"TORCH_IMAGES_LOCKS": str(cwd / "locks")} if cwd != ROOT else {}
    return subprocess.run(
        [sys.executable, "-m", "invoke", *words],
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", **own, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def facts(**values: Any) -> dict[str, Any]:
    """Options for a container without network, as most of these tests want it."""
    return {"network_mode": "none", **values}


def quiet(**values: Any) -> dict[str, Any]:
    """The same, without the line that says which libcuda was chosen."""
    return facts(environment={"TORCH_IMAGE_QUIET": "1"}, **values)


@contextlib.contextmanager
def running(image: str, *words: str, options: tuple[str, ...] = ()) -> Iterator[str]:
    """A container that has printed "ready"; its id."""
    command = ["docker", "run", "--detach", "--network=none", *options, image, *words]
    started = subprocess.run(command, capture_output=True, text=True, check=True)
    name = started.stdout.strip()
    try:
        with subprocess.Popen(
            ["docker", "logs", "--follow", name],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as log:
            assert log.stdout is not None
            assert any(line == "ready\n" for line in log.stdout)
            log.kill()
        yield name
    finally:
        subprocess.run(["docker", "rm", "--force", name], check=True, capture_output=True)


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """A real registry on loopback, Debian's docker-registry; its address."""
    folder.mkdir()
    program = shutil.which("docker-registry")
    if program is None:  # unpacked, not installed: it needs nothing else
        download = ["apt-get", "-qq", "download", "docker-registry"]
        if subprocess.run(download, cwd=folder, check=False, capture_output=True).returncode:
            subprocess.run(["apt-get", "-qq", "update"], check=True, capture_output=True)
            subprocess.run(download, cwd=folder, check=True, capture_output=True)
        [package] = folder.glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", package, folder / "program"], check=True)
        program = str(folder / "program" / "usr" / "bin" / "docker-registry")
    host = f"127.0.0.1:{closed_port()}"
    settings = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": host},
    }
    (folder / "config.yml").write_text(json.dumps(settings))
    with subprocess.Popen(
        [program, "serve", folder / "config.yml"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            assert any("listening on" in line for line in process.stderr)
            drain = threading.Thread(target=process.stderr.read, daemon=True)
            drain.start()
            yield host
        finally:
            process.terminate()
