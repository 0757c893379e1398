"""A runner that starts nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_images.errors import CommandError
from torch_images.host.runner import Completed, Runner


class FakeRunner(Runner):
    """Records commands; answers with what `answers` says for the first words of each."""

    def __init__(self, answers: Mapping[str, tuple[int, str]] | None = None) -> None:
        self.commands: list[list[str]] = []
        self.answers = dict(answers or {})

    def run(self, command: Sequence[str], **options: Any) -> Completed:
        self.commands.append(list(command))
        line = " ".join(command)
        code, output = next((a for k, a in self.answers.items() if line.startswith(k)), (0, ""))
        if code and options.get("check", True):
            raise CommandError(line, code, output)
        return Completed(code, output)
