"""Completion in a shell, of ./inv and of the installed command: bash itself asks for it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_images.cli.completion import SHELLS, script
from torch_images.config.matrix import matrix
from torch_images.config.types import Config

Complete = Callable[..., list[str]]
INSTALLED = "import sys; from torch_images.cli.program import installed; sys.exit(installed())"


@pytest.fixture(params=["./inv"])
def complete(request: pytest.FixtureRequest, tmp_path: Path, root: Path) -> Complete:
    """What bash offers after words of a command line; its script is the program's own."""
    python = shlex.quote(sys.executable)
    if request.param == "./inv":  # the real one would make an environment of its own
        command = f"cd {shlex.quote(str(root))} && exec {python} -m torch_images"
        name, program = "inv", "./inv"
    else:
        command = f"exec {python} -c {shlex.quote(INSTALLED)}"
        name, program = "torch-images", "torch-images"
        metadata = tmp_path / "torch_images-0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text("Metadata-Version: 2.1\nName: torch-images\nVersion: 0\n")
    (tmp_path / name).write_text(
        f'#!/bin/sh\nexport PYTHONPATH={root}:{tmp_path}\n{command} "$@"\n'
    )
    (tmp_path / name).chmod(0o755)

    def complete(*words: str) -> list[str]:
        line = [program, *words]
        ask = (
            f"source <({program} --print-completion-script bash) || exit; "
            f'spec=$(complete -p {name}) || exit; [[ $spec =~ "-F "([^ ]+) ]]; '
            f"COMP_WORDS=({shlex.join(line)}); COMP_CWORD={len(line) - 1}; "
            f'"${{BASH_REMATCH[1]}}" {program} {shlex.quote(words[-1].replace("=", ""))} '
            f'{shlex.quote(line[-2])}; printf "%s\\n" "${{COMPREPLY[@]}}"'
        )
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", ask], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return done.stdout.split()

    return complete


BOTH = pytest.mark.parametrize("complete", ["./inv", "torch-images"], indirect=True)


@BOTH
def test_verbs_and_options(complete: Complete) -> None:
    assert {"build", "pick", "runpod", "verify"} < set(complete(""))
    assert complete("rep") == ["reproduce"]
    assert complete("pick", "--dr") == ["--driver"]
    assert "--variant" in complete("build", "")
    assert complete("--list-f") == ["--list-format"]


@BOTH
def test_values(complete: Complete, config: Config) -> None:
    assert complete("build", "--variant", "") == list(config.names("variant"))
    assert complete("build", "--dry-run", "--cuda", "13") == ["13.0", "13.2"]
    assert complete("build", "--cuda", "=", "12") == ["12.8"]
    assert set(complete("build", "--cuda", "=")) == set(config.names("cuda"))
    assert complete("build", "--arch", "a") == ["all"]
    assert complete("build", "--platform", "") == ["all", *config.names("platform")]
    assert complete("pick", "--platform", "") == list(config.names("platform"))
    assert complete("matrix", "--platform", "linux/ar") == ["linux/arm64"]
    start = "cu130-sm90-torch2.14.1-bookworm-"
    wanted = {spec.id for spec in matrix(config) if spec.id.startswith(start)}
    assert set(complete("verify", start)) == wanted
    assert set(complete("runpod", "--image", start)) == wanted


def test_a_free_value_is_left_to_the_shell(complete: Complete) -> None:
    """No word means that bash offers files; words that are odd to a shell do no harm."""
    assert complete("render", "cu130-x", "--output", "") == []
    assert complete("pick", "--gpu", "$(touch /tmp/x)`*") == []
    assert complete("nonsense", "--vari") == []


def test_values_are_those_of_the_named_file(
    complete: Complete, yaml_file: Callable[..., Path], root: Path
) -> None:
    file = yaml_file()
    file.write_text(re.sub(r"\brecsys\b", "recsyst", file.read_text()))
    shutil.copytree(root / "locks", file.parent / "locks")
    assert complete("--config", str(file), "build", "--variant", "rec") == ["recsyst"]


def test_a_broken_file_of_images_breaks_no_completion(complete: Complete, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("[")
    words = ("--config", str(tmp_path / "broken.yaml"), "build")
    assert complete(*words, "--variant", "") == []
    assert complete(*words, "--varia") == ["--variant"]


def test_a_press_of_tab_sets_nothing_up(tmp_path: Path, root: Path) -> None:
    shutil.copy(root / "inv", tmp_path)
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/host.txt").write_text("x\n")
    done = subprocess.run(
        [tmp_path / "inv", "--complete", "--", "./inv", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr, (tmp_path / ".venv").exists()) == ("", "", False)


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_for_one_program(shell: str) -> None:
    """A shell that is here reads them, at least."""
    text = script(shell, "torch-images")
    assert "torch-images" in text
    assert "{name}" not in text
    if shutil.which(shell):
        subprocess.run([shell, "-n", "-c", text], check=True, capture_output=True)


def test_an_unknown_shell(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch_images", "--print-completion-script", "tcsh"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown shell 'tcsh'; ")
    assert done.stderr.endswith("known: bash, zsh, fish\n")
