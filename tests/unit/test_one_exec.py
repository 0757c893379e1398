"""The suite outside runs its commands by one `docker exec`. Here a script stands in for docker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image.container import OneExec

DOCKER = """#!/bin/sh
# docker exec -i CONTAINER COMMAND...
echo "$1 $2 $3" >>"$CALLS"
shift 3
exec env -i ONE=1 PATH=/usr/bin:/bin "$@"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the first words of each call of docker, which starts commands here."""
    docker = tmp_path / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.fixture
def container(calls: Path) -> Iterator[OneExec]:
    with OneExec("c0ffee") as backend:
        yield backend


def test_one_exec_runs_all_commands(container: OneExec, calls: Path) -> None:
    for code in (0, 7, 0):
        assert container.run(f"exit {code}").rc == code
    assert calls.read_text() == "exec -i c0ffee\n"


def test_both_streams_come_back_whole(container: OneExec) -> None:
    done = container.run(r"printf 'a\n\377\n\n'; printf 'b\nc' >&2")
    assert (done.stdout_bytes, done.stderr_bytes) == (b"a\n\xff\n\n", b"b\nc")


def test_words_are_quoted(container: OneExec) -> None:
    assert (
        container.run("printf %s; echo é", "a b; $HOME\n'").stdout_bytes
        == "a b; $HOME\n'é\n".encode()
    )


def test_a_command_reads_nothing_and_leaves_nothing(container: OneExec) -> None:
    """Each has a shell of its own, and none takes the next one's line."""
    assert container.run("cat; cd /tmp; X=1").stdout_bytes == b""
    assert container.run('echo "$X$PWD"').stdout_bytes.strip().decode() == str(Path.cwd())


def test_a_command_sees_what_docker_gave(container: OneExec) -> None:
    """Python may set LC_CTYPE for itself and its children; a shell of Docker's would not have it."""
    names = {line.partition(b"=")[0] for line in container.run("env").stdout_bytes.splitlines()}
    assert names - {b"_", b"PWD", b"SHLVL", b"OLDPWD"} == {b"ONE", b"PATH"}


def test_an_image_without_python_is_an_error(calls: Path) -> None:
    (calls.parent / "docker").write_text("#!/bin/sh\nexit 127\n")
    with OneExec("c0ffee") as backend, pytest.raises(RuntimeError, match="does not run"):
        backend.run("true")
