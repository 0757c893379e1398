"""How integration tests become root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.support import as_root

WORDS = ("mount", "--make-private", "/somewhere")
ANSWERS = {"allowed": "#!/bin/sh\nexit 0\n", "refused": "#!/bin/sh\nexit 1\n", "missing": ""}


@pytest.fixture
def sudo(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH with a sudo that answers so, or with none."""
    if script := ANSWERS[request.param]:
        (tmp_path / "sudo").write_text(script)
        (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize("sudo", ANSWERS, indirect=True)
def test_root_needs_no_sudo(sudo: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert as_root(*WORDS) == [*WORDS]


@pytest.mark.parametrize("sudo", ["allowed"], indirect=True)
def test_others_use_sudo_which_never_asks(sudo: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    assert as_root(*WORDS) == ["sudo", "--non-interactive", "--preserve-env", *WORDS]


@pytest.mark.parametrize("sudo", ["refused", "missing"], indirect=True)
def test_without_it_the_test_fails_with_one_line(
    sudo: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    with pytest.raises(pytest.fail.Exception) as failed:
        as_root(*WORDS)
    assert failed.value.msg == "needs root for mount: run as root, or allow `sudo -n`"
    assert not failed.value.pytrace
