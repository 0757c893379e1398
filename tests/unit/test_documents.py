"""docs/project/documents.csv and the page that is made of it: every reference leads somewhere."""

from __future__ import annotations

from tests.documents import (
    DATA,
    DOCUMENTS,
    KINDS,
    PAGE,
    ROOT,
    correction,
    figure,
    load,
    page,
    slugs,
)
from torch_images.verify import ledger

CLAIMS = load(ROOT / DATA)
IMAGES = {line.image for line in ledger.read(ROOT)}


def leads_somewhere(part: str) -> bool:
    """Whether a part of a reference names a test, a heading, an image, a figure, or a URL."""
    if part.startswith("https://"):
        return True
    path, _, name = part.partition("::" if "::" in part else "#")
    if not (ROOT / path).is_file():
        return False
    if path.endswith(".csv"):
        return name in IMAGES
    text = (ROOT / path).read_text()
    if path.endswith(".py"):
        return f"def {name.partition('[')[0]}(" in text
    if path.endswith(".md"):
        return name in slugs(text)
    return bool(correction(ROOT, part) or figure(ROOT, part))


def test_references_lead_somewhere() -> None:
    assert {claim.document for claim in CLAIMS} <= set(DOCUMENTS)
    assert {claim.kind for claim in CLAIMS} <= set(KINDS)
    assert [p for claim in CLAIMS for p in claim.references if not leads_somewhere(p)] == []
    tested = (claim.reference for claim in CLAIMS if claim.kind == "tested")
    assert all("::test_" in reference for reference in tested)


def test_page_is_what_the_data_give() -> None:
    """If not: `PYTHONPATH=scripts/bench_report python -m tests.documents`."""
    assert (ROOT / PAGE).read_text() == page(CLAIMS)
