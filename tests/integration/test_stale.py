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
from torch_images.publish import ledger

IMAGE = f"cu130-sm80-torch{T130}-trixie-runtime"


@pytest.mark.slow
def test_stale_images_are_built_once(
    built: dict[str, Built], project: Callable[..., Path], engine: Engine
) -> None:
    """In a copy of the project, whose ledger is empty. The layers are those of another image."""
    folder = project()
    (folder / LEDGER).unlink(missing_ok=True)
    stale = ("build", "--stale", "--select", IMAGE)
    done = invoke(*stale, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    line = ledger.read(folder)[IMAGE]
    assert done.stdout.splitlines()[-1] == f"{IMAGE}: proved, {line.checks} checks passed"
    assert int(line.checks) > 150
    assert not engine.tags("torch-cu130:sm80")  # room for the next one
    [said] = json.loads(invoke("matrix", "--select", IMAGE, "--json", cwd=folder).stdout)["image"]
    assert said["proved"]
    again = invoke(*stale, cwd=folder)
    assert (again.returncode, again.stdout.splitlines()[-1][:16]) == (0, "nothing to build")


@pytest.mark.slow
def test_an_older_release_on_debian_13(built: dict[str, Built], engine: Engine) -> None:
    """Another release and another Python; equal digests show that the base is made the same."""
    words = ("--cuda", "13.0", "--torch", "2.13", "--arch", "12.0", "--base", "trixie")
    done = invoke("build", *words, "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    [image] = json.loads(done.stdout)
    try:
        assert image["observed"]["torch"].startswith("2.13.")
        assert image["checks"]["failed"] == 0
        release = image["observed"]["torch"].partition("+")[0]
        assert image["tags"][0].startswith(f"torch-cu130:{release}-sm120-runtime-trixie-")
        python = engine.run(image["digest"], "python", "-V", network_mode="none")
        assert "Python 3.13." in python.output
        same = invoke("reproduce", image["tags"][0])
        assert same.returncode == 0, same.stdout[-2000:] + same.stderr[-2000:]
    finally:
        for tag in image["tags"]:
            engine.untag(tag)
