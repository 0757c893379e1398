"""Every error for users, with its exit code.

An error is one line: the problem, then what to change. `cli/program.py` prints it; any other
exception is a bug and keeps its traceback. No error shows a secret, see `redact.py`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from torch_images.redact import redact

_LISTED, _NEAREST = 12, 5  # names in a hint
_LONGEST = 300  # characters of an error's line
_HINT = 160  # of these at least for the hint
_SHOWN = 120  # characters of text from outside that a message repeats


class TorchImagesError(Exception):
    """A failure that the user can act on.

    `message` is the problem, `hint` what to change; `str()` joins them on one line.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = redact(" ".join(message.split()))
        self.hint = redact(" ".join(hint.split()))
        super().__init__(f"{self.message}; {self.hint}" if self.hint else self.message)


class UsageError(TorchImagesError):
    """A request that cannot be met, such as an invalid option or an impossible image."""

    exit_code = 2


class ConfigError(TorchImagesError):
    """images.yaml, or a setting of the environment, is invalid."""

    exit_code = 2


class LockError(TorchImagesError):
    """A lock is missing or stale, or an input differs from its lock."""

    exit_code = 3


class EngineError(TorchImagesError):
    """No usable Docker Engine or builder."""

    exit_code = 4


class RightsError(EngineError):
    """The user has no rights on the engine's socket."""


class DiskError(TorchImagesError):
    """Not enough disk space."""

    exit_code = 5


class NetworkError(TorchImagesError):
    """A package index or mirror could not be reached. `again`: whether to try once more."""

    exit_code = 6
    again = True


class NoAnswerError(NetworkError):
    """No such host, or no answer for long: another attempt would only wait again."""

    again = False


class UnfinishedError(TorchImagesError):
    """A build stopped early as requested; compiled files are kept."""

    exit_code = 7


class PublishError(TorchImagesError):
    """An image must not be published as requested."""


class BuildError(TorchImagesError):
    """The build itself failed."""


class VerifyError(TorchImagesError):
    """An image failed its checks."""


class CommandError(TorchImagesError):
    """A process failed; `command` can be pasted into a shell, `output` is its output.

    Secrets in both are replaced.
    """

    def __init__(self, command: str, code: int, output: str) -> None:
        self.command = command = redact(command)
        self.code = code
        self.output = output = redact(output)
        last = output.strip().splitlines()[-1] if output.strip() else "no output"
        super().__init__(f"exit code {code} from: {command}", f"it said: {last}")


def suggest(word: str, known: Iterable[str]) -> str:
    """A hint for a word that is not in `known`: the nearest name, and others.

    Lists up to a dozen names; of more, the five nearest, or as many as fit.
    """
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(word, names, n=_NEAREST, cutoff=0.6)
    guess = f"did you mean '{near[0]}'? " if near else ""
    if len(names) <= _LISTED:
        return f"{guess}known: {', '.join(names) or 'none'}"
    some = near if len(near) == _NEAREST else list(dict.fromkeys([*near, *names]))[:_NEAREST]
    while len(some) > 1 and len(guess + ", ".join(some)) > _HINT:
        some.pop()
    return f"{guess}known: {', '.join(some)} and {len(names) - len(some)} more"


def one_line(about: str, message: str, hint: str) -> str:
    """The line of an error, cut to a fixed length, since it may repeat text from outside."""
    room = _LONGEST - len(f"{about}: ; ")
    ends = _cut(hint, max(_HINT, room - len(message)))
    begins = _cut(message, room - len(ends))
    return f"{about}: {begins}; {ends}" if ends else f"{about}: {begins}"


def _cut(text: str, room: int) -> str:
    """The text, shortened to fit: first its long words, then its middle.

    The beginning usually has the problem, and the end the reason.
    """
    if len(text) > room:
        text = re.sub(r"(\S{30})\S{50,}(\S{20})", r"\1...\2", text)
    if len(text) > room:
        end = max(0, room) // 3
        begins, ends = text[: max(0, room - end - 3)], text[len(text) - end :]
        # Between words, unless one is long.
        begins, ends = re.sub(r"\s\S{0,30}$", " ", begins), re.sub(r"^\S{0,30}\s", " ", ends)
        text = f"{begins}...{ends}"
    return text


def shown(text: str) -> str:
    """The beginning of a text from outside, without control characters."""
    start = text[:_SHOWN].encode("ascii", "backslashreplace").decode()
    visible = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in start)
    return visible if len(text) <= _SHOWN else f"{visible}..."
