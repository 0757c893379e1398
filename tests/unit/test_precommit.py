"""The hooks of .pre-commit-config.yaml run the lint of the verb `test`, by the same versions."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from torch_images.cli import program
from torch_images.host.runner import Runner


def hooks(root: Path) -> list[dict[str, Any]]:
    document = yaml.safe_load((root / ".pre-commit-config.yaml").read_text())
    assert [repository["repo"] for repository in document["repos"]] == ["local"]
    return [hook for repository in document["repos"] for hook in repository["hooks"]]


def test_hooks_are_the_lint_of_the_verb(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def interact(_: Runner, command: list[str], **kwargs: object) -> int:
        commands.append([str(word) for word in command])
        return 0

    monkeypatch.setattr(Runner, "interact", interact)
    assert program.run(["test", "--fast"]) == 0
    programs = str(Path(sys.executable).parent)
    lint = [
        [command[0].replace(programs, ".venv/bin"), *command[1:]]
        for command in commands
        if "pytest" not in command
    ]
    assert len(lint) == 4
    assert [shlex.split(hook["entry"]) + hook.get("args", []) for hook in hooks(root)] == lint
