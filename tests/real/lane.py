"""The project's verbs on the real tree: `python -m tests.real.lane wheels --slice 90m`.

A server on loopback stands in for the host of the tree. All else is as it is for users: the verbs,
the locks in locks/ beside images.yaml, the engine.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.integration.support import ROOT
from tests.integration.trees import Repositories, mirror
from tests.real import debian, tree
from torch_images.host.workspace import default_cache

CONFIG = Path(__file__).with_name("images.yaml")


@contextlib.contextmanager
def lane() -> Iterator[dict[str, str]]:
    """Serve what the real tree needs; the environment of verbs that use it."""
    cache = default_cache() / "real-source"
    files = debian.files(debian.locked(), cache)
    bare = repository()
    made = tree.make(files, bare)
    assert made in CONFIG.read_text(), f"images.yaml must name commit {made}"
    with mirror(Repositories(cache), {}) as url:
        yield {"TORCH_IMAGES_CONFIG": str(CONFIG), "TORCH_IMAGES_SOURCE_MIRROR": url}


def repository() -> Path:
    """The bare repository with the tree, in the cache of this user."""
    return default_cache() / "real-source" / "bare" / f"{tree.NAME}.git"


def main() -> None:
    """Run a verb with what it needs; ends with its exit code."""
    with lane() as env:
        command = [sys.executable, "-m", "invoke", *sys.argv[1:]]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
