"""No secret in errors and output: every variable and option that can hold one."""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_images.errors import CommandError, TorchImagesError
from torch_images.host.runner import Runner
from torch_images.redact import SHORTEST, Lines, Redactor, stream

URLS = (
    *("UV_DEFAULT_INDEX", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "TORCH_IMAGES_MIRROR"),
    *("DOCKER_HOST", "HTTP_PROXY", "https_proxy", "CCACHE_REMOTE_STORAGE"),
)
# Variables whose value is the secret.
PLAIN = (
    *("RUNPOD_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("TENCENTCLOUD_SECRET_ID", "GITHUB_TOKEN", "REGISTRY_PASSWORD", "AZURE_CONNECTION_STRING"),
    *("GH_PAT", "MYSQL_PWD", "DBPASS", "MY_PASS_2", "BEARER", "SESSION_COOKIE", "TOKEN_2", "KEY2"),
)
CACHES = (
    "type=s3,region=x,bucket=b,access_key_id={},name=n",
    "type=s3,region=x,bucket=b,secret_access_key={},name=n",
    "type=gha,scope=s,token={}",
)


@pytest.mark.parametrize("name", URLS)
@pytest.mark.parametrize("scheme", ["https://", ""])
def test_redactor_hides_passwords_of_variables(name: str, scheme: str) -> None:
    hide = Redactor.of({name: f"{scheme}me:p%40ss%2Fword@host.example/path"})
    for spelt in ("p%40ss%2Fword", "p@ss/word"):
        shown = hide(f"error: 403 for url: https://me:{spelt}@host.example/path; or '{spelt}'")
        assert shown == "error: 403 for url: https://***@host.example/path; or '***'"
    header = base64.b64encode(b"me:p@ss/word").decode()
    assert hide(f"sent {header}") == "sent ***"


@pytest.mark.parametrize("name", PLAIN)
def test_redactor_hides_secret_variables(name: str) -> None:
    assert Redactor.of({name: "p@s/s#w%rd"})("it said: p@s/s#w%rd, so") == "it said: ***, so"


@pytest.mark.parametrize("key", ["GH_PAT", "mysql_pwd", "db_pass", "bearer", "cookie", "token_2"])
def test_no_word_that_is_a_secret_is_shown(key: str) -> None:
    assert Redactor()(f"run -e {key}=p@s/s#w%rd x") == f"run -e {key}=*** x"


@pytest.mark.parametrize("option", CACHES)
def test_redactor_hides_cache_options(option: str) -> None:
    words = ["invoke", "build", "--cache-to", option.format("a/b+c==")]
    assert "a/b+c==" not in Redactor()(shlex.join(words))
    assert Redactor.of({}, words)("it said: a/b+c==, so") == "it said: ***, so"


@pytest.mark.parametrize(
    "words",
    [
        ("build", "--torch-source", "http://me:hunter2@m/project"),
        ("build", "--torch-source", "https://hunter2@git.example/x"),
        ("build", "--torch-source", "https://hunter2:x-oauth-basic@git.example/x"),
    ],
)
def test_redactor_hides_passwords_of_the_command_line(words: tuple[str, ...]) -> None:
    assert Redactor.of({}, words)("it said: hunter2") == "it said: ***"
    assert "hunter2" not in Redactor()(" ".join(words))


def test_registry_credentials() -> None:
    auth = base64.b64encode(b"me:hunter2").decode()
    config = json.dumps({"auths": {"r.example": {"auth": auth}, "s": {"identitytoken": "abcdefg"}}})
    hide = Redactor.of({"DOCKER_AUTH_CONFIG": config})
    assert hide(f"{auth} abcdefg r.example") == "*** *** r.example"
    for text in (config, f"Authorization: Basic {auth}"):
        assert auth not in Redactor()(text)


def test_header_hides_all_but_a_placeholder() -> None:
    assert Redactor()('"Authorization: Bearer %sabc"') == '"Authorization: Bearer ***"'


def test_redactor_hides_a_secret_of_many_lines() -> None:
    key = "-----BEGIN KEY-----\nabcdefgh\nijklmnop\n-----END KEY-----\n"
    assert Redactor.of({"DEPLOY_KEY": key})("abcdefgh\nijklmnop") == "***\n***"


@pytest.mark.parametrize(
    "text",
    [
        "no Docker Engine at tcp://host:2375: no answer; start it",
        "set DOCKER_HOST=tcp://HOST:PORT",
        "unix:///var/run/docker.sock and file:///x:y/z",
        "https://github.com/me/x@abcdef and git+https://h:8080/x@main",
        "docker-image://torch:24.04@sha256:ab oci-layout:///b@sha256:ab",
        "ssh://git@github.com/x is a name, not a token",
        "http://[::1]:80/x, https://h:443. (https://no-color.org)",
        "failed to fetch oauth token: unexpected status: 401 Unauthorized",
        "RUN --mount=type=secret,id=ca,target=/run/ca",
        "OLDPWD=/root PWD=/root GIT_ASKPASS=/x bypass=host max_tokens=100000",
        '{"JUPYTER_PASSWORD": "{{ RUNPOD_SECRET_jupyter }}"}',
        "-e JUPYTER_PASSWORD=${WORD}",
        """printf 'header = "Authorization: Bearer %s"' "$RUNPOD_API_KEY" | curl --config -""",
    ],
)
def test_redactor_keeps_what_is_no_secret(text: str) -> None:
    environ = {
        "HOME": "/root",
        "TERM": "xterm",
        "X_TOKEN": "1",
        "PWD": "oauth token",
        "OLDPWD": "oauth token",
        "GIT_ASKPASS": "docker-image",
        "MAX_TOKENS": "status",
        "SECRET_SERVICE_PORT": "tcp://host:2375",
        "SSH_TOKEN_FILE": "https",
        "A": "=",
    }
    assert Redactor.of(environ, ["inv", "build"])(text) == text


@given(st.text(max_size=60), st.text(max_size=60))
def test_redactor_hides_any_secret(secret: str, text: str) -> None:
    hide = Redactor.of({"UV_DEFAULT_INDEX": secret, "X_TOKEN": secret}, [secret])
    shown = hide(f"{text}{secret}{text}")
    assert len(secret) < SHORTEST or "*" in secret or secret not in shown


@given(st.lists(st.integers(0, 40)), st.sampled_from("\n\r"))
def test_lines_redact_a_secret_in_pieces(cuts: list[int], end: str) -> None:
    text = f"one hunter2{end}http://a:bc@host two{end}last hunter2"
    lines = Lines(Redactor.of({"A_TOKEN": "hunter2"}))
    places = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    shown = [lines.feed(text[a:b]) for a, b in itertools.pairwise(places)]
    expected = f"one ***{end}http://***@host two{end}last ***"
    assert "".join([*shown, lines.rest()]) == expected


def test_stream_writes_at_once_on_flush() -> None:
    below = io.StringIO()
    shown = stream(below, Redactor.of({"A_TOKEN": "hunter2"}))
    print("\rprogress hunter2 50%", end="", file=shown)
    assert below.getvalue() == "\r"
    shown.flush()
    shown.writelines(["\n", "done\n"])
    assert below.getvalue() == "\rprogress *** 50%\ndone\n"
    assert not shown.isatty()


def test_errors_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", "hunter2")
    error = TorchImagesError("no hunter2 at http://a:b@h", "unset hunter2")
    assert str(error) == "no *** at http://***@h; unset ***"
    failed = CommandError("git clone http://a:b@h", 1, "fatal: hunter2\n")
    assert (failed.command, failed.output) == ("git clone http://***@h", "fatal: ***\n")
    assert "hunter2" not in repr((error, failed))


def test_stream_redacts_a_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("A_TOKEN", "hunter2")
    done = Runner().stream(["sh", "-c", "echo one $A_TOKEN; printf 'http://a:b@h'"])
    assert done.output == "one ***\nhttp://***@h"
    assert capfd.readouterr().err == "one ***\nhttp://***@h"


FAILING = """\
import os, sys
from torch_images.cli import options, program, verb
def fail(_):
    print(os.environ["A_TOKEN"])
    print(os.environ["A_TOKEN"], file=sys.stderr)
    raise RuntimeError("for url: http://me:x@host", os.environ["A_TOKEN"])
program.VERBS = {"fail": verb.verb(options.Options, example="")(fail)}
program.main()
"""


def test_a_traceback_and_a_print_show_no_secret(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILING, "fail"],
        cwd=root,
        env={**os.environ, "A_TOKEN": "hunter2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "***\n")
    assert done.stderr.startswith("***\nTraceback")
    assert done.stderr.endswith("RuntimeError: ('for url: http://***@host', '***')\n")


def test_short_values_are_hidden_where_they_are_marked() -> None:
    short = "x" * (SHORTEST - 1)
    hide = Redactor.of({"A_TOKEN": short, "UV_DEFAULT_INDEX": f"http://me:{short}@h"})
    assert hide(f"http://me:{short}@h token={short} {short}") == f"http://***@h token=*** {short}"
