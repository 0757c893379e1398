"""Text -> the same text without secrets. Pure, except for the streams at the end.

`errors.py` applies it to every error, `program.py` to standard output and standard error, and
`runner.py` to the output of streamed commands.

Three kinds of secrets are replaced by `***`:
- user and password in any URL;
- the value of a word such as `secret_access_key=...` or `"password": "..."`, and of an
  Authorization header;
- secrets in this process's environment or command line, as given there or percent-decoded.
"""

from __future__ import annotations

import base64
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TextIO, cast
from urllib.parse import unquote

MASK = "***"
# Shorter values are hidden only where a URL or a name marks them: values such as "1", "true" or
# "root" are parts of ordinary words, and output without those would be unreadable.
SHORTEST = 6  # characters
_LONGEST_LINE = 1 << 16  # characters that a stream buffers while it waits for a line's end

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]{0,20})://(?P<user>[^\s\"'<>\x1b/?#]+)(?=@)", re.IGNORECASE
)
# Image names contain "@" and ":" themselves.
_IMAGES = ("docker-image", "oci-layout")
_WORD = re.compile(
    r"(?P<key>(?:(?<!ask)(?<!by)pass[a-z]{0,6}|(?<=_)pat|(?<=[a-z0-9_])(?<!old)pwd|bearer|cookie"
    r"|token(?:_?\d+)?|secret|(?<=\")auth|(?<![a-z])sig|signature"
    r"|x-amz-credential|(?:access|account|api|private|secret|shared)[_-]?key(?:[_-]?id)?)"
    r"(?:=|\"\s*:\s*\"))"
    r"(?!\{\{|\$[{(])"  # a placeholder of another program
    r"(?P<value>(?<==)[^\s,;&\"'<>\x1b]+|(?<=\")(?:[^\"\\]|\\.)+)",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(?P<name>authorization[\"']?\s*[:=]\s*[\"']?(?:basic|bearer|token)\s+)"
    r"(?!%s(?:[\s\"',;]|$))[^\s\"',;]+",  # printf's placeholder
    re.IGNORECASE,
)
# Variables with a secret, by a word in their names, or at the end, perhaps with a number.
_SECRET_NAME = re.compile(
    r"SECRET|BEARER|COOKIE|TOKEN(?![A-Z])|(?<!ASK)PASS"
    r"|(?:(?:^|_)(?:PAT|KEY|KEY_ID|AUTH|CREDENTIALS?)|CONNECTION_STRING|(?<!^)(?<!^OLD)PWD)"
    r"(?:_?\d+)?$",
    re.IGNORECASE,
)
# No secret, whatever the name: Kubernetes and Docker set such variables for each service.
_ADDRESS = re.compile(r"[a-z]+://[\w.\[\]:-]+/?", re.IGNORECASE)
_PLACE_NAME = re.compile(r"_(?:FILE|DIR|PATH|NAME)$", re.IGNORECASE)
# Variables with URLs, perhaps without a scheme.
_URL_NAME = re.compile(
    r"(?:_PROXY|_INDEX|_URL|_MIRROR|_ENDPOINT|_HOST|_STORAGE)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Redactor:
    """Replaces secrets in text; `known` matches the secrets of this process."""

    known: re.Pattern[str] | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str], words: Sequence[str] = ()) -> Redactor:
        """A redactor that knows the secrets of an environment and of a command line."""
        exact = set(secrets(environ, words))
        known = {s for s in exact | {unquote(s) for s in exact} if len(s) >= SHORTEST}
        # The longest first: one secret may be the beginning of another.
        longest = sorted(known, key=lambda secret: (-len(secret), secret))
        return cls(re.compile("|".join(map(re.escape, longest))) if longest else None)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        if self.known:
            text = self.known.sub(MASK, text)
        if "://" in text:
            text = _URL.sub(_without_user, text)
        return _HEADER.sub(rf"\g<name>{MASK}", _WORD.sub(rf"\g<key>{MASK}", text))


def redact(text: str) -> str:
    """The text without secrets, including those of this process's environment and command line."""
    return _redactor(tuple(os.environ.items()), tuple(sys.argv))(text) if text else ""


# Cached, because `pick` and the site create an error for each of many refused images.
@lru_cache(maxsize=1)
def _redactor(environ: tuple[tuple[str, str], ...], words: tuple[str, ...]) -> Redactor:
    """The redactor of this process, as long as its environment does not change."""
    return Redactor.of(dict(environ), words)


def secrets(environ: Mapping[str, str], words: Sequence[str]) -> Iterator[str]:
    """Every secret of an environment and of a command line, of any length."""
    for name, value in environ.items():
        known = _PLACE_NAME.search(name) or _ADDRESS.fullmatch(value)
        if _SECRET_NAME.search(name) and not known:
            yield value
            yield from map(str.strip, value.splitlines())
        bare = _URL_NAME.search(name) and "://" not in value
        yield from _of_text(f"x://{value}" if bare else value)
    for word in words:
        yield from _of_text(word)


def _of_text(text: str) -> Iterator[str]:
    """The secrets in a value that may contain URLs and `key=value` words."""
    for match in _WORD.finditer(text):
        yield match["value"]
    for match in _URL.finditer(text) if "://" in text else ():
        user = _user(match)
        name, _, password = user.partition(":")
        yield name if password in ("", "x-oauth-basic") else password
        if password:
            yield from (user, base64.b64encode(unquote(user).encode(errors="replace")).decode())


def _user(match: re.Match[str]) -> str:
    """The user in a URL, with the password; "" if it has no secret."""
    user, scheme = match["user"], match["scheme"].lower()
    is_name = ":" not in user and "ssh" in scheme  # never a token
    return "" if is_name or scheme in _IMAGES else user


def _without_user(match: re.Match[str]) -> str:
    return f"{match['scheme']}://{MASK}" if _user(match) else match[0]


class Lines:
    """Redacts text that comes in pieces, line by line, so that no secret is split."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._rest = ""

    def feed(self, text: str) -> str:
        """All complete lines so far; a carriage return also ends a line."""
        self._rest += text
        end = max(self._rest.rfind("\n"), self._rest.rfind("\r")) + 1
        if not end and len(self._rest) > _LONGEST_LINE:
            end = self._rest.rfind(" ") + 1 or len(self._rest)
        ready, self._rest = self._rest[:end], self._rest[end:]
        return self._redactor(ready)

    def rest(self) -> str:
        """The incomplete last line."""
        ready, self._rest = self._rest, ""
        return self._redactor(ready)


class _Stream:
    """A text stream without secrets; everything but writing goes to the stream below."""

    def __init__(self, below: TextIO, redactor: Redactor) -> None:
        self._below = below
        self._lines = Lines(redactor)
        self._lock = threading.RLock()
        self.written = 0.0  # when, by time.monotonic

    def write(self, text: str) -> int:
        with self._lock:
            self._below.write(self._lines.feed(text))
            self.written = time.monotonic()
            return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        with self._lock:
            self._below.write(self._lines.rest())
            self._below.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._below, name)


def stream(below: TextIO, redactor: Redactor) -> TextIO:
    """A stream that writes to another one, without secrets."""
    return cast("TextIO", _Stream(below, redactor))
