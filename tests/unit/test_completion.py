"""Invoke's completion, of ./inv and of the installed command: bash itself asks for it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

INSTALLED = "import sys; from torch_images.cli.program import installed; sys.exit(installed())"


def program(folder: Path, root: Path, name: str) -> None:
    """A command in a folder that is the real one, but for the environment that ./inv would make."""
    run = "-m torch_images" if name == "inv" else f"-c {shlex.quote(INSTALLED)}"
    metadata = folder / "torch_images-0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch-images\nVersion: 0\n")
    lines = ["#!/bin/sh", f"export PYTHONPATH={root}:{folder}", f"cd {shlex.quote(str(root))}"]
    lines.append(f'exec {shlex.quote(sys.executable)} {run} "$@"')
    (folder / name).write_text("\n".join(lines))
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(("name", "typed"), [("inv", "./inv"), ("torch-images", "torch-images")])
def test_bash_completes_verbs_and_options(
    tmp_path: Path, root: Path, name: str, typed: str
) -> None:
    program(tmp_path, root, name)
    ask = f"""
        source <({typed} --print-completion-script bash) || exit
        [[ $(complete -p {typed}) =~ "-F "([^ ]+) ]] || exit
        ask() {{
            COMP_WORDS=({typed} "$@"); COMP_CWORD=$#
            "${{BASH_REMATCH[1]}}" {typed} "${{@: -1}}"; echo "${{COMPREPLY[*]}}"
        }}
        ask rep; ask pick --dr; ask build --vari
    """
    done = subprocess.run(
        ["bash", "-c", ask],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["reproduce", "--driver", "--variant"]
