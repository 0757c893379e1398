"""Every error a user can meet, and the exit code each one ends with.

An error is one line: what is wrong, then what to change. `cli/program.py` makes the line of
them; anything else that escapes is a bug and keeps its traceback. No error shows a secret, see
`redact.py`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from torch_images.redact import redact

_LISTED, _NEAREST = 12, 5  # names in a hint
_LONGEST = 300  # characters of a line that tells of an error
_HINT = 160  # of these for a hint, at least
_SHOWN = 120  # characters that a message repeats of what came from outside


class TorchImagesError(Exception):
    """A failure that the user can act on.

    `message` says what is wrong, `hint` what to change; `str()` joins them on one line.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = redact(" ".join(message.split()))
        self.hint = redact(" ".join(hint.split()))
        super().__init__(f"{self.message}; {self.hint}" if self.hint else self.message)


class UsageError(TorchImagesError):
    """A request that no image of the matrix can meet."""

    exit_code = 2


class ConfigError(TorchImagesError):
    """images.yaml, or a value from it, is not acceptable."""

    exit_code = 2


class LockError(TorchImagesError):
    """A lock is missing or stale, or an input is not the one that was locked."""

    exit_code = 3


class EngineError(TorchImagesError):
    """No usable Docker Engine or builder."""

    exit_code = 4


class RightsError(EngineError):
    """There may be a Docker Engine, but this user has no rights on its socket."""


class DiskError(TorchImagesError):
    """Not enough disk space."""

    exit_code = 5


class NetworkError(TorchImagesError):
    """A package index or mirror could not be reached."""

    exit_code = 6


class UnfinishedError(TorchImagesError):
    """A build stopped as it was asked to, with more to do; what is compiled is kept."""

    exit_code = 7


class PushError(TorchImagesError):
    """A registry, or the way to it, did not take an image; `message` is what was said."""


class PublishError(TorchImagesError):
    """An image must not be published as it was asked."""


class BuildError(TorchImagesError):
    """The build itself failed."""


class VerifyError(TorchImagesError):
    """The image is not what it claims to be."""


class CommandError(TorchImagesError):
    """A process failed; `command` can be pasted into a shell, `output` is its last lines.

    Secrets in them are replaced.
    """

    def __init__(self, command: str, code: int, output: str) -> None:
        self.command = command = redact(command)
        self.code = code
        self.output = output = redact(output)
        last = output.strip().splitlines()[-1] if output.strip() else "no output"
        super().__init__(f"exit code {code} from: {command}", f"it said: {last}")


def suggest(word: str, known: Iterable[str]) -> str:
    """A hint for a word that is not one of `known`: the nearest one, and some of the others.

    A dozen names are listed, of more the five nearest, or as many as there is room for.
    """
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(word, names, n=_NEAREST, cutoff=0.5)
    begun = [name for name in names if name.startswith(f"{word}.")]  # 13: 13.0 before 13.2
    near = [*begun, *(name for name in near if name not in begun)][:_NEAREST]
    guess = f"did you mean '{near[0]}'? " if near else ""
    if len(names) <= _LISTED:
        return f"{guess}known: {', '.join(names) or 'none'}"
    some = near if len(near) == _NEAREST else list(dict.fromkeys([*near, *names]))[:_NEAREST]
    while len(some) > 1 and len(guess + ", ".join(some)) > _HINT:
        some.pop()
    return f"{guess}known: {', '.join(some)} and {len(names) - len(some)} more"


def told(about: str, message: str, hint: str) -> str:
    """The line that tells of an error; what came from outside cannot make it any longer."""
    room = _LONGEST - len(f"{about}: ; ")
    ends = _cut(hint, max(_HINT, room - len(message)))
    begins = _cut(message, room - len(ends))
    return f"{about}: {begins}; {ends}" if ends else f"{about}: {begins}"


def _cut(text: str, room: int) -> str:
    """The text; where there is no room for it, with less of its long words and of its middle.

    What went wrong is said at the beginning, and why, by those who pass errors on, at the end.
    """
    if len(text) > room:
        text = re.sub(r"(\S{30})\S{50,}(\S{20})", r"\1...\2", text)
    if len(text) > room:
        end = max(0, room) // 3
        text = f"{text[: max(0, room - end - 3)]}...{text[len(text) - end :]}"
    return text


def shown(text: str) -> str:
    """The beginning of a text from outside, with nothing in it that a terminal would obey."""
    start = text[:_SHOWN].encode("ascii", "backslashreplace").decode()
    visible = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in start)
    return visible if len(text) <= _SHOWN else f"{visible}..."
