"""Text -> the same text without secrets. Pure, except for the streams at the end.

`errors.py` applies it to every error, `program.py` to standard output and standard error, and
`runner.py` to the output of streamed commands. As a program, `python -m torch_images.redact`
filters its standard input.

Three kinds of secrets are replaced by `***`:
- user and password in any URL;
- the value of a word such as `secret_access_key=...` or `"password": "..."`, and of an
  Authorization header;
- secrets in this process's environment or command line, wherever they occur and however they are
  quoted there.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import json
import os
import re
import sys
import threading
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
    r"(?P<scheme>[a-z][a-z0-9+.-]{0,20})://"
    r"(?P<rest>(?:(?![a-z][a-z0-9+.-]{0,20}://)[^\s\"'<>\x1b])+)",
    re.IGNORECASE,
)
# Image names contain "@" and ":" themselves.
_IMAGES = ("docker-image", "oci-layout")
_PORT = re.compile(r"\d{0,5}(?:$|[/?#:;,.)\]}|`\\])")
_KEYS = (
    r"(?:password|passwd|passphrase|token|secret|(?<=\")auth|(?<![a-z])sig|signature"
    r"|x-amz-credential"
    r"|(?:access|account|api|private|secret|shared)[_-]?key(?:[_-]?id)?)"
)
_KEY = re.compile(f"{_KEYS}$", re.IGNORECASE)
_WORD = re.compile(
    rf"(?P<key>{_KEYS}(?:=|\"\s*:\s*\"|(?P<nested>\\\"\s*:\s*\\\")))"
    r"(?!\{\{|\$[{(])"  # a placeholder of another program
    r"(?(nested)(?:(?!\\\").)+|(?:(?<==)[^\s,;&\"'<>\x1b]+|(?<=\")(?:[^\"\\]|\\.)+))",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(?P<name>authorization[\"']?\s*[:=]\s*[\"']?(?:basic|bearer|token)\s+)[^\s\"',;]+",
    re.IGNORECASE,
)
# Variables with a secret, by the end of their names; SECRET may be anywhere in them.
_SECRET_NAME = re.compile(
    r"(?:PASSWORD|PASSWD|PASSPHRASE|TOKEN|(?:^|_)(?:PASS|KEY|KEY_ID|AUTH|CREDENTIALS?)"
    r"|CONNECTION_STRING)$|SECRET",
    re.IGNORECASE,
)
_PLACE_NAME = re.compile(r"_(?:FILE|DIR|PATH|NAME)$", re.IGNORECASE)
# Variables with URLs, perhaps without a scheme and with "/" in a password.
_URL_NAME = re.compile(
    r"(?:_PROXY|_INDEX|_URL|_MIRROR|_ENDPOINT|_HOST|_STORAGE)$",
    re.IGNORECASE,
)
_DOCKER_AUTH = re.compile(
    r"\"(auth|password|identitytoken|registrytoken)\"\s*:\s*\"([^\"]+)\"", re.IGNORECASE
)


@dataclass(frozen=True)
class Redactor:
    """Replaces secrets in text; `known` matches the secrets of this process."""

    known: re.Pattern[str] | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str], words: Sequence[str] = ()) -> Redactor:
        """A redactor that knows the secrets of an environment and of a command line."""
        known = {secret for secret in secrets(environ, words) if len(secret) >= SHORTEST}
        if not known:
            return cls()
        # The longest first: one secret may be the beginning of another.
        longest = sorted(known, key=lambda secret: (-len(secret), secret))
        return cls(re.compile("|".join(_spelled(secret) for secret in longest)))

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
        yield from _of_text(value)
        if _SECRET_NAME.search(name) and not _PLACE_NAME.search(name):
            yield from _forms(value)
            yield from (form for line in value.splitlines() for form in _forms(line.strip()))
        if _URL_NAME.search(name):
            for url in value.split():
                yield from _of_user(_lenient_user(url))
        if name == "DOCKER_AUTH_CONFIG":
            yield from _of_docker_auth(value)
    for word in words:
        yield from _of_text(word)


def _of_text(text: str) -> Iterator[str]:
    """The secrets in a value that may contain URLs and `key=value` words."""
    if "://" in text:
        for match in _URL.finditer(text):
            yield from _of_user(_user(match["scheme"], match["rest"]))
    if "=" in text:
        for field in _fields(text):
            key, _, value = field.partition("=")
            if _KEY.search(key.strip()):
                yield from _forms(value)


def _fields(text: str) -> Iterator[str]:
    """The parts of options: buildx parses caches as CSV, connection strings have semicolons."""
    with contextlib.suppress(csv.Error):  # a part is longer than any option
        for fields in csv.reader(text.splitlines()):
            for field in fields:
                yield from (field, *field.split(";"))


def _of_user(user: str) -> Iterator[str]:
    """The secrets in "user:password" of a URL."""
    name, _, password = user.partition(":")
    yield from _forms(user) if password else ()
    yield from _forms(password)
    # Programs may show an invalid URL in pieces.
    pieces = re.split(r"[@/?#]", password)
    yield from pieces if len(pieces) > 1 else ()
    if password in ("", "x-oauth-basic"):  # a token in place of the user's name
        yield from _forms(name)
    yield base64.b64encode(unquote(user).encode(errors="replace")).decode() if password else ""


def _of_docker_auth(text: str) -> Iterator[str]:
    """The secrets in Docker's configuration, in the form of DOCKER_AUTH_CONFIG."""
    for kind, value in _DOCKER_AUTH.findall(text):
        yield value
        if kind.lower() == "auth":
            try:
                yield from _of_user(base64.b64decode(value).decode())
            except (binascii.Error, UnicodeDecodeError):
                continue


def _forms(secret: str) -> tuple[str, str]:
    """A secret as it was given, and without percent-encoding."""
    return secret, unquote(secret)


def _user(scheme: str, rest: str) -> str:
    """The user in a URL, before "@" or before a cut; "" if it has no secret."""
    if scheme.lower() in _IMAGES:
        return ""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        user = authority.rpartition("@")[0]
        named = ":" not in user and "ssh" in scheme.lower()  # a name, never a token
        return "" if named else user
    before, colon, after = rest.partition(":")
    if not colon or re.search(r"[/?#\[@]", before) or _PORT.match(after):
        return ""
    # No port follows the colon: a password that contains "/", or that is cut off.
    return rest.rpartition("@")[0] or rest


def _lenient_user(url: str) -> str:
    """The part before the last "@" in a text that is known to be a URL."""
    user = url.partition("://")[2] or url
    return user.rpartition("@")[0] if ":" in user else ""


def _without_user(match: re.Match[str]) -> str:
    user = _user(match["scheme"], match["rest"])
    if not user:
        return match[0]
    return f"{match['scheme']}://{MASK}{match['rest'].removeprefix(user)}"


def _spelled(secret: str) -> str:
    """A pattern for a secret as written in URLs, JSON, Python and shells."""
    pattern = ""
    for part in re.split(r"(%[0-9A-Fa-f]{2})", secret):
        if re.fullmatch(r"%[0-9A-Fa-f]{2}", part):
            pattern += f"(?i:%(?:25)?{part[1:]})"
        else:
            pattern += "".join(map(_character, part))
    return pattern


def _character(character: str) -> str:
    """A pattern for one character of a secret."""
    if character.isascii() and character.isalnum():
        return character
    spelt = {character, *(form(character)[1:-1] for form in (json.dumps, repr, ascii))}
    spelt |= {f"\\{character}", "'\"'\"'"} if character in "\"'" else set()
    percent = "".join(f"%{byte:02x}" for byte in character.encode(errors="replace"))
    forms = [re.escape(form) for form in sorted(spelt, key=lambda s: (-len(s), s))]
    return f"(?:{'|'.join(forms)}|(?i:{percent}))"


class Lines:
    """Redacts text that comes in pieces, line by line, so that no secret is split."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, text: str) -> str:
        """All complete lines so far; a carriage return also ends a line."""
        self._held += text
        end = max(self._held.rfind("\n"), self._held.rfind("\r")) + 1
        if not end and len(self._held) > _LONGEST_LINE:
            end = self._held.rfind(" ") + 1 or len(self._held)
        ready, self._held = self._held[:end], self._held[end:]
        return self._redactor(ready)

    def rest(self) -> str:
        """The incomplete last line."""
        ready, self._held = self._held, ""
        return self._redactor(ready)


class _Stream:
    """A text stream without secrets; everything but writing goes to the stream below."""

    def __init__(self, below: TextIO, redactor: Redactor) -> None:
        self._below = below
        self._lines = Lines(redactor)
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            self._below.write(self._lines.feed(text))
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


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(redact(line))
