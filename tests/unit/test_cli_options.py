"""Each option of a verb is declared once, and each verb says what it can be told."""

from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit
from invoke.parser.argument import Argument

from torch_images.cli import program, verb
from torch_images.cli.build_tasks import Build, Wheels
from torch_images.cli.collection import GROUPS, namespace
from torch_images.cli.options import Options, flag, option, several, word
from torch_images.cli.program import as_called
from torch_images.cli.publish_tasks import Push
from torch_images.cli.verify_tasks import Verify
from torch_images.errors import UsageError

VERBS = {one.name.replace("_", "-"): one for verbs in GROUPS.values() for one in verbs}
OPTIONS = [
    pytest.param(argument, id=f"{name}-{argument.names[0]}")
    for name, one in VERBS.items()
    for argument in one.get_arguments()
]
Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ./inv in this process, and give what it printed; it must end as told."""

    def run(*words: str, code: int = 0, said: str = "") -> str:
        verbs = program.Program("1", namespace, name="Invoke", binary="./inv")
        with pytest.raises(SystemExit) as caught:
            verbs.run(["./inv", *words])
        shown = capsys.readouterr()
        assert (caught.value.code, shown.err) == (code, said)
        return shown.out

    return run


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_help(name: str, run: Run) -> None:
    """Also one that needs words, as `push --help` lacks its image."""
    text = run(name, "--help")
    assert text.startswith(f"Usage: ./inv {name} ")
    assert f"\nExample:\n  ./inv {name}" in text
    options = VERBS[name].get_arguments()
    assert [f"--{one.names[0]}" for one in options if f"\n  --{one.names[0]}" not in text] == []
    assert text.split("\n")[0].split()[3:-1] == [
        one.name.upper() for one in options if one.positional and one.name
    ]


@pytest.mark.parametrize("one", OPTIONS)
def test_every_option_has_a_help_text(one: Argument) -> None:
    assert one.help
    assert not one.help.endswith(".")


def test_without_a_verb_the_verbs_are_listed(run: Run) -> None:
    bare = run()
    assert bare.startswith("See:\n\n  matrix ")
    assert "--debug" not in bare
    assert run("--list") in bare
    whole = run("--help")
    assert whole.index("matrix") < whole.index("--debug")


NOTHING = ["--dry", "-R", "-e", "--echo", "-p", "--pty", "-w", "--warn-only", "--write-pyc"]
NOTHING += ["--prompt-for-sudo-password", "--no-dedupe", "-r", "-c"]


@pytest.mark.parametrize("flag", NOTHING)
def test_what_means_nothing_here_is_refused(
    flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invoke has --dry, which would run a verb all the same: its work is no shell command."""
    monkeypatch.setattr(VERBS["docs"], "body", lambda *_, **__: pytest.fail("it was run"))
    with pytest.raises(SystemExit) as caught:
        program.Program("1", namespace).run(["./inv", flag, "docs"])
    shown = capsys.readouterr()
    assert (caught.value.code, shown.out) == (2, "")
    assert shown.err.startswith(f"error: unknown option '{flag}'; ")
    assert shown.err.count("\n") == 1


def test_a_plain_invoke_refuses_it_too(root: Path, tmp_path: Path) -> None:
    words = ["-m", "invoke", "-r", str(root), "--dry", "site", "--output", str(tmp_path / "site")]
    done = subprocess.run(
        [sys.executable, *words], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --")
    assert done.stderr.endswith(" is not supported here; leave it out\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("start", "name"),
    [
        ("/x/torch_images/__main__.py", "./inv"),
        ("/x/bin/torch-images", "torch-images"),
        ("/x/bin/invoke", "invoke"),
        ("/x/bin/inv", "invoke"),
        ("/x/invoke/__main__.py", "invoke"),
    ],
)
def test_messages_name_the_command_as_it_was_called(
    start: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Options) -> None:
        raise UsageError("it is not locked", "run `invoke lock`")

    monkeypatch.setattr(sys, "argv", [start])
    with pytest.raises(Exit) as caught:
        verb.verb(Options)(fail).body(None)
    assert caught.value.message == f"error: it is not locked; run `{name} lock`"
    assert verb.as_json(["`invoke push` makes it"]) == f'[\n  "`{name} push` makes it"\n]'
    text = "./inv build --cuda 13.0; in a clone, as ./inv, or x/./inv build"
    assert as_called(text) == text.replace("./inv", name, 1)


def test_warnings_name_the_command_as_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/bin/torch-images"])
    record = logging.makeLogRecord({"msg": "%s is gone; run `invoke lock`", "args": ("a",)})
    assert verb._warnings.format(record) == "warning: a is gone; run `torch-images lock`"


def test_no_text_names_the_command_in_another_way(root: Path) -> None:
    """Verbs stand after "`invoke ", or after "./inv ", which become what the user called."""
    verbs = "|".join(task.replace("_", "-") for task in namespace.task_names)
    other = re.compile(rf"(?<!`)\b(?:invoke|inv)(?: --?[\w-]+)* (?:{verbs})\b")
    found = []
    for path in sorted((root / "torch_images").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value.replace("./inv ", "")
                found += [(path.name, text) for _ in other.finditer(text)]
    assert not found


class Every(Options):
    """An option of each kind."""

    image: str = word("an image")
    count: int = option("a number", default=3, parse=lambda _, text: int(text))
    mirror: tuple[str, ...] = several("a mirror")
    dry_run: bool = flag("change nothing")


def test_words_become_one_object() -> None:
    words = {"image": "x", "count": "4", "mirror": ["a", "b"], "dry_run": True}
    read = {"image": "x", "count": 4, "mirror": ("a", "b"), "dry_run": True}
    assert asdict(Every.of(words)) == read
    bare = {"image": "", "count": 3, "mirror": (), "dry_run": False}
    assert asdict(Every.of({"image": "", "count": "", "mirror": [], "dry_run": False})) == bare


@pytest.mark.parametrize("words", [{"image": "a\0b"}, {"image": "x", "mirror": ["a", "\0"]}])
def test_a_zero_byte_is_refused(words: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^--\w+ contains a zero byte; leave it out$"):
        Every.of(words)


def test_words_are_read_at_the_edge() -> None:
    wheels = Wheels.of({"slice": "90m", "share": "1/2", "jobs": "4"})
    assert (wheels.slice, wheels.share, wheels.jobs) == (5400, "1/2", 4)
    assert Push.of({"image": "x", "retries": "0"}).retries == 0
    assert Push.of({"image": "x"}).retries == 5
    assert Verify.of({"image": "x"}).gpus == ()
    [gpu] = Verify.of({"image": "x", "gpus": "all"}).gpus
    assert gpu["count"] == -1


def test_axes_are_those_that_a_verb_has() -> None:
    assert Build.of({"cuda": "13.0", "platform": "all"}).axes == {
        **dict.fromkeys(("torch", "arch", "source", "base", "variant", "compat"), ""),
        "cuda": "13.0",
        "platform": "all",
    }
    assert Build.of({"compat": True}).axes["compat"] == "with"
    assert sorted(Wheels.of({}).axes) == ["arch", "base", "cuda", "source"]
