"""A newer Docker Engine than this machine's: that of Debian's forky, in a root of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.support import as_root, second_engine
from torch_images.host.workspace import scratch_room

# A mirror may lag behind; who signed its lists is checked all the same.
_FORKY = ["mmdebstrap", "--variant=minbase", '--aptopt=Acquire::Check-Valid-Until "false"']
_FORKY += ["--include=ca-certificates,docker-buildx,docker-cli,docker.io,iptables", "forky"]


@contextlib.contextmanager
def newer_engine() -> Iterator[dict[str, str]]:
    """The engine, and its own client and buildx; the variables by which commands use all three."""
    folder = Path(tempfile.mkdtemp(prefix="torch-images-test-", dir=scratch_room()))
    root = folder / "root"
    try:
        done = subprocess.run(
            as_root(*_FORKY, str(root)), capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.fail(f"mmdebstrap cannot make the system:\n{done.stderr[-2000:]}", pytrace=False)
        programs, plugins = folder / "bin", folder / "config" / "cli-plugins"
        for place, program in (
            (programs, root / "usr/bin/docker"),
            (plugins, root / "usr/libexec/docker/cli-plugins/docker-buildx"),
        ):
            place.mkdir(parents=True)
            (place / program.name).symlink_to(program)
        with second_engine(runs=True, root=root) as address:
            yield {
                "DOCKER_HOST": address,
                "DOCKER_CONFIG": str(plugins.parent),
                "PATH": f"{programs}:{os.environ['PATH']}",
            }
    finally:
        subprocess.run(as_root("rm", "-rf", "--one-file-system", str(folder)), check=True)
