"""docs/project/documents.csv and the page that is made of it: every reference leads somewhere."""

from __future__ import annotations

import ast
import functools
import re

from tests.documents import (
    DATA,
    DOCUMENTS,
    KINDS,
    PAGE,
    ROOT,
    Claim,
    correction,
    figure,
    load,
    page,
    slugs,
)
from torch_images.verify import ledger

CLAIMS = load(ROOT / DATA)
LEDGER = ledger.read(ROOT)
# What each kind may refer to. "ledger" is an image that was built, "missing" one that could not be.
REFERS = {
    "tested": {"test", "heading", "ledger"},
    "measured": {"figure", "heading", "correction"},
    "corrected": {"test", "heading", "correction", "url"},
    "not run": {"test", "heading", "missing"},
    "out of scope": {"heading"},
}


@functools.cache
def names_in(path: str) -> tuple[frozenset[str], str]:
    """The functions of a file, and its text with that of the table that it imports."""
    text = (ROOT / path).read_text()
    names = {n.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)}
    more = (ROOT / "tests/decisions.py").read_text() if "tests.decisions" in text else ""
    return frozenset(names), text + more


@functools.cache
def kind_of(part: str) -> str:
    """What a part of a reference is; "" where it leads nowhere."""
    if part.startswith("https://"):
        return "url"
    path, mark, name = part.partition("::" if "::" in part else "#")
    if not (ROOT / path).is_file():
        return ""
    if mark == "#":
        return "heading" if name in slugs((ROOT / path).read_text()) else ""
    if path.endswith(".py"):
        test, _, parameter = name.removesuffix("]").partition("[")
        tests, text = names_in(path)
        return "test" if test in tests and (not parameter or f'"{parameter}"' in text) else ""
    if path.endswith(".csv"):
        lines = [line for line in LEDGER if line.image == name]
        return ("missing" if all(line.missing for line in lines) else "ledger") if lines else ""
    return "correction" if correction(ROOT, part) else "figure" if figure(ROOT, part) else ""


def problem(claim: Claim) -> str:
    """What is wrong with a row; "" if nothing is."""
    kinds = [kind_of(part) for part in claim.references]
    if claim.document not in DOCUMENTS or claim.kind not in KINDS:
        return "unknown document or kind"
    if not set(kinds) <= REFERS[claim.kind]:
        return f"refers to {kinds}"
    if not kinds and claim.kind != "out of scope":
        return "no reference"
    if claim.kind == "tested" and "test" not in kinds:
        return "no test"
    needs_note = claim.kind in ("not run", "out of scope", "corrected")
    return "no note" if needs_note and not claim.note and "correction" not in kinds else ""


def test_rows_lead_somewhere() -> None:
    assert {claim.claim: text for claim in CLAIMS if (text := problem(claim))} == {}
    assert len({(claim.document, claim.claim) for claim in CLAIMS}) == len(CLAIMS)
    assert all(re.search(r"\.$", claim.claim) for claim in CLAIMS)


def test_the_page_is_what_the_data_give() -> None:
    """If not: `python -m tests.documents`."""
    assert (ROOT / PAGE).read_text() == page(CLAIMS)
