"""What the ledger has no line for is built, verified and written down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.support import Built, invoke, make_image, second_engine
from tests.releases import T128, T130
from torch_images.host.connection import connect
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


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine for one test, which every command uses. What was built in it goes with it.

    In the engine of the other tests, the build cache of these images would stay until the end.
    """
    with second_engine(runs=True) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        yield connect()


@pytest.mark.slow
def test_an_image_of_another_cuda_and_base_is_reproducible(brief: Engine) -> None:
    """Verified, and equal from nothing."""
    result = make_image("--select", f"cu128-torch{T128}-bookworm-runtime")
    assert result.observed["torch"].partition("+")[0] == T128
    assert result.checks["failed"] == 0
    assert "torch-cu128:latest" in result.tags
    done = brief.run(result.digest, "python", "-V", network_mode="none")
    assert "Python 3.11." in done.output
    same = invoke("reproduce", result.tags[0])
    assert same.returncode == 0, same.stdout[-2000:] + same.stderr[-2000:]
