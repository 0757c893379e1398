"""Command lines: help, errors and exit codes, with their texts in tests/golden."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from docker.errors import ImageNotFound

from tests.unit.conftest import T130
from tests.unit.fakes import INV, invoke
from torch_images.cli import program, verb
from torch_images.cli.called import as_called, line
from torch_images.cli.collection import VERBS
from torch_images.cli.options import Options
from torch_images.cli.parser import parse
from torch_images.cli.verb import Result, Verb, as_json
from torch_images.errors import NetworkError, UsageError, one_line

Golden = Callable[[str, str], None]
IMAGE = f"cu130-torch{T130}-trixie-runtime"

# What nobody may type, by what is wrong with it. None needs an engine or today's images.yaml.
WRONG = """\
bulid
-x matrix
--config
--help nonsense
build --nonsense
build --cudaa 13.0
build --cuda
build --compat=yes
build 13.0
push
pick
pick H100
matrix --registry ghcr.io/me
runpod --dry-run
lock --check --renew
lock --all
lock --renew
lock --renew --all --select x
lock --check --upgrade torch
lock --upgrade torch --select x
build --stale --json
build --stale --compression small
build --source fork --jobs=-1
build --torch-source .
build --compression fancy
wheels --source wheel
wheels --slice 90
wheels --share 3/2
gc --older 30
gc --keep 1.5GB
wheels --slice 1h --no-cache
build --jobs ٣
bench x --gpus ²
render x --standalone
matrix --select nothing
--config /none matrix
"""


def test_help(root: Path, tmp_path: Path, golden: Golden) -> None:
    """Of an images.yaml that cannot be read, so that no value of today's stands there."""
    (tmp_path / "images.yaml").write_text("{")
    for name in ("", *VERBS):
        config = str(tmp_path / "images.yaml")
        done = invoke(root, *name.split(), "--help", name=INV, TORCH_IMAGES_CONFIG=config)
        assert (done.returncode, done.stderr) == (0, "")
        golden(f"help/{name or 'all'}.txt", done.stdout)


def test_help_fits_80_columns(root: Path) -> None:
    for name in ("", *VERBS):
        text = invoke(root, "help", *name.split(), name=INV, COLUMNS="80").stdout
        assert max(map(len, text.splitlines())) <= 80, name
        assert max(one.count("(default") for one in text.split("\n  --")) <= 1, name
    assert invoke(root, "help", "build") == invoke(root, "build", "--help")


def test_an_error_is_cut_between_words() -> None:
    text = one_line("error", " ".join(["incompatibility"] * 60), "change it")
    assert len(text) <= 300
    assert {*text.removeprefix("error: ").removesuffix("; change it").split()} == {
        *("incompatibility", "...")
    }


@pytest.mark.parametrize("word", ["--gpu", "--python", "nothing"])
def test_a_word_that_nothing_is_like_gets_no_suggestion(root: Path, word: str) -> None:
    assert "did you mean" not in invoke(root, *["build"] * word.startswith("-"), word).stderr


def test_yes_is_taken_from_inv_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_perform", lambda *_: None)
    for before, after in (("ask", "yes"), ("", "")):
        monkeypatch.setenv("TORCH_IMAGES_SETUP", before)
        assert program.run(["--yes", "matrix"]) == 0
        assert os.environ["TORCH_IMAGES_SETUP"] == after


def test_silence_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(verb, "_QUIET", 0.5)
    with verb.still(lambda: "at base-trixie"):
        time.sleep(1.2)
    assert screen.getvalue() == "still at base-trixie, 1 s\n"


def test_wrong_command_lines(root: Path, golden: Golden) -> None:
    lines = []
    for words in WRONG.splitlines():
        done = invoke(root, *words.split(), name=INV, DOCKER_HOST="unix:///none")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), words
        lines += [f"$ ./inv {words}\n", done.stderr, "\n"]
    golden("errors.txt", re.sub(r"known: (base-|cu1).*", "known: ...", "".join(lines)))


@pytest.mark.parametrize("name", VERBS)
def test_examples_can_be_read(name: str) -> None:
    first, *words = shlex.split(VERBS[name].example)
    assert first == name
    VERBS[name].options.of(parse(VERBS, name, words))


@pytest.mark.parametrize("start", [["-m", "torch_images"], ["-m", "invoke"]])
def test_inv_and_invoke_end_alike(root: Path, tmp_path: Path, start: list[str]) -> None:
    """On a terminal of ASCII; plain Invoke has tasks of the same options."""
    words = [sys.executable, *start, "render", IMAGE, "--output", f"{tmp_path}/é"]
    env = {**os.environ, "NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}
    env["TORCH_IMAGES_CONFIG"] = str(root / "images.yaml")
    done = subprocess.run(words, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("/\\xe9\n")
    words[-4:] = ["build", "--cuda", "1", "--dry-run"]
    done = subprocess.run(words, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "cuda '1'" in done.stderr


def failing(error: Exception) -> Verb:
    """A verb that raises an error."""

    def fail(_: Options) -> None:
        raise error

    return Verb(name="fail", function=fail, options=Options, example="")


@pytest.mark.parametrize(
    ("error", "code", "noun"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x/file"), 5, "disk"),
        (ImageNotFound("gone", explanation="No such image: x\n"), 4, "No such image: x"),
        (requests.ReadTimeout("silent"), 4, "engine connection"),
        (NetworkError("no answer"), 6, "no answer"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_run_prints_an_error_as_one_line(
    error: Exception,
    code: int,
    noun: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import torch_images.host.engine  # noqa: F401  as each verb that needs an engine

    monkeypatch.setattr(program, "VERBS", {"fail": failing(error)})
    assert program.run(["fail"]) == code
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert noun in shown.err


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "VERBS", {"fail": failing(FileNotFoundError("somewhere"))})
    with pytest.raises(FileNotFoundError):
        program.run(["fail"])


def test_run_prints_a_result_before_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def then() -> None:
        raise UsageError("it failed")

    one = Verb(
        name="x", function=lambda _: Result(text="a text", then=then), options=Options, example=""
    )
    monkeypatch.setattr(program, "VERBS", {"x": one})
    assert program.run(["x"]) == 2
    assert capsys.readouterr() == ("a text\n", "error: it failed\n")


def test_build_without_an_engine(root: Path) -> None:
    done = invoke(root, "build", DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "no Docker Engine at unix:///nonexistent/docker.sock" in done.stderr


@pytest.mark.parametrize(
    ("path", "start"),
    [
        (INV, "./inv"),
        ("/x/bin/torch-images", "torch-images"),
        ("/x/bin/inv", "invoke"),
        ("/x/invoke/__main__.py", "invoke"),
    ],
)
def test_messages_name_the_command_as_it_was_called(
    path: str, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [path])
    assert line(UsageError("it is not locked", "run `invoke lock`")).endswith(f"`{start} lock`")
    assert as_json(["`invoke push`"]) == f'[\n  "`{start} push`"\n]'
    text = "./inv build --cuda 13.0; in a clone, as ./inv, or x/./inv build"
    assert as_called(text) == text.replace("./inv", start, 1)


LONG, MANY = "x" * 9000, "word " * 900


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        (f"no file {LONG} is there", ""),
        (f"no {MANY} and why", "do this"),
        (MANY, MANY),
        (LONG, LONG),
    ],
)
def test_one_line_fits_a_screen(message: str, hint: str) -> None:
    text = one_line("error", message, hint)
    assert len(text) <= 300
    assert text.startswith(f"error: {message[:20]}")
    assert text.strip().endswith((hint or message)[-15:].strip())
