"""What pod-start writes for sshd, and what it says. tests/integration/test_pod.py logs in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.scripts import ROOT, load

pod = load("scripts/image/pod/pod-start")

needs_keys = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen here")
TOKEN = b"a-long-word"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """A private key and its public one."""
    file = tmp_path_factory.mktemp("keys") / "key"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me", "-f", str(file)]
    subprocess.run(words, check=True)
    return file.read_bytes(), file.with_suffix(".pub").read_bytes().strip()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@needs_keys
def test_no_part_of_what_is_no_key_is_in_the_log(
    pair: tuple[bytes, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A private key that was pasted in place of the public one went to the log, 40 letters a line."""
    private, public = pair
    file = tmp_path / ".ssh" / "authorized_keys"
    assert not pod.authorize(private, file)
    assert not file.exists()
    count = len(private.splitlines())
    numbers = ", ".join(map(str, range(1, count + 1)))
    line = f"pod-start: PUBLIC_KEY: lines {numbers} are not public keys and were ignored\n"
    assert capsys.readouterr().out == line
    assert pod.authorize(b"# mine\n\n" + private + b"\n" + public, file)
    assert file.read_bytes() == public + b"\n"
    assert len(capsys.readouterr().out) == len(line)


@needs_keys
def test_a_byte_that_is_no_text_stops_nothing(
    pair: tuple[bytes, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pod never started. What others wrote to authorized_keys stays, byte for byte."""
    _, public = pair
    file = tmp_path / "authorized_keys"
    theirs = b"# Andr\xe9\nssh-rsa \xff\xfe\r\n\n" + public[:-2] + b"Ren\xe9"
    file.write_bytes(theirs)
    assert pod.authorize(b"\xff\n" + public + b"\n\xfe" + public, file)
    assert file.read_bytes() == theirs + b"\n" + public + b"\n"
    assert capsys.readouterr().out.splitlines() == [
        f"pod-start: {file}: line 2 is not a public key and was ignored",
        "pod-start: PUBLIC_KEY: lines 1, 3 are not public keys and were ignored",
    ]
    before = file.read_bytes()
    assert pod.authorize(public, file)
    assert file.read_bytes() == before


@needs_keys
def test_others_neither_read_nor_change_what_is_written(
    pair: tuple[bytes, bytes], tmp_path: Path
) -> None:
    """An authorized_keys that others may write is refused by sshd; the environment holds secrets."""
    for name, content in (("new", None), ("there", b"# theirs\n")):
        keys = tmp_path / name / "authorized_keys"
        settings = tmp_path / name / "environment.conf"
        if content:
            keys.parent.mkdir()
            for file in (keys, settings):
                file.write_bytes(content)
                file.chmod(0o666)
        assert pod.authorize(pair[1], keys)
        pod.write_private(settings, b"x")
        assert (mode(keys), mode(settings)) == (0o600, 0o600)
    assert mode(tmp_path / "new") == 0o700
    assert settings.read_bytes() == b"x"


def test_logins_get_neither_token_nor_keys() -> None:
    """Whoever logs in could read the token of JupyterLab, and every program there."""
    given = {b"JUPYTER_PASSWORD": TOKEN, b"PUBLIC_KEY": TOKEN, b"HOME": b"/x", b"A": b"b"}
    given[b"TORCH_IMAGE_STARTED"] = b"1"  # or a login would not get the entrypoint's settings
    assert pod.for_logins(given) == b'SetEnv "A=b"\n'


NAMES = st.binary(min_size=1, max_size=8).filter(lambda n: not {*b"=\0"} & {*n})
VALUES = st.binary(max_size=20).filter(lambda v: 0 not in v)


@given(st.dictionaries(NAMES, VALUES))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_value_ends_the_line(
    capsys: pytest.CaptureFixture[str], environment: dict[bytes, bytes]
) -> None:
    """A second line of sshd's settings could let anybody in. What is left out is said."""
    environment |= {b"KEY.a-b": b'PEM \xff"\\', b"CERT": b"PEM\nPermitRootLogin yes"}
    line = pod.for_logins(environment)
    assert line.startswith(b"SetEnv ")
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert b'"KEY.a-b=PEM \xff\\"\\\\"' in line
    output = capsys.readouterr().out
    assert output.startswith(
        "pod-start: logins over ssh lack the variables that contain line breaks: "
    )
    assert "CERT" in output
    assert "PEM" not in output
    assert output.count("\n") == 1


def test_sshd_lets_nobody_in_without_a_key() -> None:
    """The first line about a setting counts, and this file comes before Debian's own."""
    text = (ROOT / "scripts/image/pod/sshd.conf").read_text()
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert dict(reversed(lines)) == {
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitEmptyPasswords": "no",
        "PermitRootLogin": "prohibit-password",
        "UsePAM": "no",
        "X11Forwarding": "no",
        "PrintMotd": "no",
        "ClientAliveInterval": "60",
    }


def test_jupyters_token_is_on_no_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """All users can read command lines."""
    started: list[tuple[list[str], dict[bytes, bytes]]] = []
    monkeypatch.setattr(
        subprocess, "Popen", lambda words, *, env, **_: started.append((words, env))
    )
    given = {b"JUPYTER_PASSWORD": TOKEN, b"PUBLIC_KEY": b"k", b"RUNPOD_POD_ID": b"p\xff"}
    pod.start_jupyter(given)
    [(words, env)] = started
    assert TOKEN.decode() not in " ".join(words)
    assert env[b"JUPYTER_TOKEN"] == TOKEN
    assert not {b"JUPYTER_PASSWORD", b"PUBLIC_KEY"} & env.keys()
