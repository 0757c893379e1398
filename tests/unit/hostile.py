"""Strategies for what nobody wrote by hand: words, lines and documents that mean harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from torch_images.errors import TorchImagesError

# Words that have broken parsers: numbers that Python refuses to read, digits that are none in
# ASCII, what a terminal obeys, what leaves a folder, what a program takes for an option.
WORDS = st.sampled_from(
    [
        *("", " ", "-", "..", ".", "/", "//", "../../etc/passwd", "/etc/passwd", "a\\b", "~"),
        *("9" * 5000, "1" + "0" * 400, "-1", "1e999", "NaN", "0x10", "\u0663", "\u00b2", "\u0967"),
        *("\0", "\x1b[31m", "\r", "\u2028", "\x85", "\ufeff", "\u202e", "\ud800", "\udcff"),
        *("-o", "--hash=x", "apt-", "g++", "a.*", "a;b", "$(id)", "%s", "{0}", "[::1", "a@b", "@"),
        *("sha256:", "sha256:" + "0" * 63, "sha256:" + "z" * 64, "x" * 3000, "None", "null"),
    ]
) | st.text(max_size=12)

# JSON of any shape, and numbers and nesting that only some readers survive.
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS
DOCUMENTS = st.recursive(
    SCALARS, lambda x: st.lists(x, max_size=3) | st.dictionaries(WORDS, x, max_size=3), max_leaves=8
)
RAW_JSON = st.sampled_from(
    [
        *("", "{", "[" * 20_000, '{"a":' * 20_000, "9" * 5000, "[" + "9" * 5000 + "]", "1e999"),
        *("nul", '"\\ud800"', "\x00", "[1,]", "<html></html>", '{"a": 1, "a": 2}'),
    ]
)


def ends_well(action: Callable[[], Any]) -> Any:
    """What an action gives; None where it ends in an error of ours, which must be one line."""
    try:
        return action()
    except TorchImagesError as error:
        text = str(error)
        assert text
        assert len(text.splitlines()) == 1
        assert len(text) < 2000
        return None


@st.composite
def altered_lines(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> str:
    """A text with some of its lines dropped, doubled, moved, cut or with a word replaced."""
    lines = draw(texts).split("\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(lines) - 1, 0)))
        what = draw(st.sampled_from(["drop", "double", "move", "cut", "word", "part", "insert"]))
        line = lines[at] if lines else ""
        if what == "drop":
            lines[at : at + 1] = []
        elif what == "double":
            lines.insert(at, line)
        elif what == "move":
            lines.insert(draw(st.integers(0, len(lines))), line)
        elif what == "cut":
            lines[at : at + 1] = [line[: draw(st.integers(0, len(line)))]]
        elif what == "insert":
            lines.insert(at, draw(WORDS))
        else:
            mark = " " if what == "word" else draw(st.sampled_from("=:/-_.@,"))
            words = line.split(mark)
            words[draw(st.integers(0, len(words) - 1))] = draw(WORDS)
            lines[at : at + 1] = [mark.join(words)]
    return "\n".join(lines)


@st.composite
def altered(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document with one part of it taken out or replaced by anything."""
    if isinstance(document, dict) and document and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(document)))
        if not draw(st.integers(0, 5)):
            return {k: v for k, v in document.items() if k != key}
        return {**document, key: draw(altered(document[key]))}
    if isinstance(document, list) and document and draw(st.integers(0, 4)):
        at = draw(st.integers(0, len(document) - 1))
        if not draw(st.integers(0, 5)):
            return document[:at] + document[at + 1 :]
        return [*document[:at], draw(altered(document[at])), *document[at + 1 :]]
    return draw(DOCUMENTS)


def json_texts(document: Any) -> st.SearchStrategy[str]:
    """The text of a document, whole, altered, cut or quite another."""
    whole = altered(document).map(json.dumps)
    cut = st.integers(0, len(json.dumps(document))).map(lambda n: json.dumps(document)[:n])
    return st.one_of(st.just(json.dumps(document)), whole, whole, whole, cut, RAW_JSON)


def almost(sha256: str) -> str:
    """A hash that differs in its last digit: any shorter piece of one can be met on purpose."""
    return sha256[:-1] + ("1" if sha256[-1] == "0" else "0")
