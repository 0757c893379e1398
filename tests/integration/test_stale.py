"""What the ledger has no line for is built, verified and written down."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.support import Built, invoke
from tests.releases import T130
from torch_images.host.engine import Engine
from torch_images.project import LEDGER
from torch_images.verify import ledger

IMAGE = f"cu130-sm80-torch{T130}-trixie-runtime"


@pytest.mark.slow
def test_stale_images_are_built_once(
    built: Built, project: Callable[..., Path], engine: Engine
) -> None:
    """In a copy of the project, whose ledger is empty. The layers are those of another image."""
    folder = project()
    (folder / LEDGER).unlink(missing_ok=True)
    stale = ("build", "--stale", "--select", IMAGE)
    done = invoke(*stale, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    [line] = ledger.read(folder)
    assert done.stdout.splitlines()[-1] == f"{IMAGE}: tested, {line.checks} checks passed"
    assert line.checks
    assert line.checks > 150
    assert not engine.tags("torch-cu130:sm80")  # room for the next one
    [entry] = json.loads(invoke("matrix", "--select", IMAGE, "--json", cwd=folder).stdout)["images"]
    assert entry["tested"]
    again = invoke(*stale, cwd=folder)
    assert (again.returncode, again.stdout.splitlines()[-1][:16]) == (0, "nothing to build")
