"""What the verb `test` says before it starts what needs Docker."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import tasks
from torch_images.cli import verb
from torch_images.host.runner import Runner


@pytest.mark.parametrize(
    ("every", "free", "local", "said"),
    [
        (False, 45, True, ""),
        (False, 44, True, "these tests need 45 GB of disk, {} has 44 GB free"),
        (True, 65, True, ""),
        (True, 64, True, "these tests need 65 GB of disk, {} has 64 GB free"),
        (True, 1, False, ""),
    ],
)
def test_too_little_disk_is_said_before_the_tests(
    every: bool,
    free: int,
    local: bool,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The disk of an engine elsewhere cannot be seen."""
    engine = SimpleNamespace(local_root=lambda: tmp_path if local else None)
    monkeypatch.setattr(verb, "engine", lambda **_: engine)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free * 10**9))
    monkeypatch.setattr(Runner, "interact", lambda *_, **__: 0)
    tasks.namespace["test"].body(None, all=every)
    before, _, after = capsys.readouterr().out.rpartition("-m invoke lock --check")
    assert after.count("-m pytest tests/integration --numprocesses=2") == 1
    assert ("GB of disk" in before) == bool(said)
    assert said.format(tmp_path) in before
