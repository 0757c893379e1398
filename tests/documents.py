"""docs/project/documents.csv -> docs/project/documents.md: what became of each claim of the documents.

    PYTHONPATH=scripts/bench_report python -m tests.documents

writes the page. tests/unit/test_documents.py checks the data, and that the page follows from them.
"""

from __future__ import annotations

import csv
import functools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from bench_results import read

from torch_images.markdown import table

ROOT = Path(__file__).resolve().parents[1]
DATA = Path("docs/project/documents.csv")
PAGE = Path("docs/project/documents.md")

# The documents by subject, in the words of the page.
DOCUMENTS = {
    "fork": "Guide to a PyTorch fork for CUDA 13 and Blackwell, with benchmarks of an RTX 5090",
    "pod": "Report of PyTorch 2.9.0 for CUDA 13.0 on an H100 pod whose driver is older",
    "cutlass": "Guide to CUTLASS in torch.compile, with benchmarks of a B200",
    "features": "List of the features of a PyTorch 2.10 build for Blackwell",
    "notes": "Notes on CUDA graphs, CuPy, CUTLASS and allocators for a trainer",
}
KINDS = {
    "tested": "the named test fails where the claim is not true",
    "measured": "a committed report has our own figure; that of the document is not repeated on its GPU",
    "corrected": "the claim is wrong, not shown, or no longer true; the note says what holds",
    "not run": "the test or the build exists, and has not run where it would show the claim",
    "out of scope": "no image can serve it; the note says why",
}
ON_GPU = "tests/container/test_gpu_"

HEAD = """\
# The documents that the project began with

This project began with five documents about building and running PyTorch with CUDA. Some of what they say is wrong.
[documents.csv](documents.csv) has each of their claims with the test, the report or the source that decides it, and a note. `PYTHONPATH=scripts/bench_report .venv/bin/python -m tests.documents` writes this page from it.
"""
TAIL = """\
GPU checks of tested claims passed in built images on an H100 or H200 ([gpu.md](../gpu.md#what-ran-on-which-gpu)). No figure of an RTX 5090 or a B200 was repeated. "Part of torch itself" in a note means: every wheel of torch has it,
images have it unchanged but for `removals` in images.yaml, and PyTorch's own tests cover it.
"""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A row: a claim of a document, what became of it, and what shows that.

    `reference` is empty or has parts, separated by "; ". A part is a test ("FILE::TEST[PARAMETER]"),
    a case of a result or a correction ("FILE.json::KEY"), a line of the ledger ("FILE.csv::IMAGE"), a
    heading ("FILE.md#SLUG"), or a URL.
    """

    document: str
    claim: str
    kind: str
    reference: str
    note: str

    @property
    def references(self) -> tuple[str, ...]:
        """The parts of the reference."""
        return tuple(part for part in self.reference.split("; ") if part)

    @property
    def needs_gpu(self) -> bool:
        """Whether all its tests are checks that need a GPU."""
        return bool(self.references) and all(r.startswith(ON_GPU) for r in self.references)


def load(path: Path) -> tuple[Claim, ...]:
    """The rows of the data, in their order."""
    with path.open(newline="") as file:
        rows = csv.DictReader(file, strict=True)
        assert rows.fieldnames == [field.name for field in fields(Claim)]
        return tuple(Claim(**row) for row in rows)


def slugs(text: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@functools.cache
def _json(path: Path) -> Mapping[str, list[dict[str, str]]]:
    rows: Mapping[str, list[dict[str, str]]] = json.loads(path.read_text())
    return rows


_result = functools.cache(read)


def correction(root: Path, part: str) -> Mapping[str, str] | None:
    """The correction of reference data that "FILE::WHAT" names."""
    path, _, what = part.partition("::")
    for each in _json(root / path).get("corrections", ()):
        if each["what"] == what:
            return dict(each)
    return None


def figure(root: Path, part: str) -> str:
    """What a case of a result took: "0.377 ms, 4,265 GB/s" on which GPU."""
    path, _, key = part.partition("::")
    result = _result(root / path)
    timed = result.figure(key)
    assert timed is not None, part
    rate = f", {timed.rate}" if timed.rate else ""
    return f"{timed.median * 1e3:.4g} ms{rate} on {result.machine['gpu'].removeprefix('NVIDIA ')}"


def page(claims: Sequence[Claim]) -> str:
    """The whole page: how many claims there are of each kind."""
    rows: list[list[object]] = []
    for name, title in DOCUMENTS.items():
        count = Counter(claim.kind for claim in claims if claim.document == name)
        rows.append([title, count.total(), *(count[kind] for kind in KINDS)])
    whole = Counter(claim.kind for claim in claims)
    rows.append(["all", len(claims), *(whole[kind] for kind in KINDS)])
    on_gpu = sum(claim.kind == "tested" and claim.needs_gpu for claim in claims)
    meanings = [*KINDS.items()]
    meanings[0] = ("tested", f"{KINDS['tested']}; {on_gpu} of {whole['tested']} need a GPU")
    counts = table(["Document", "Claims", *KINDS], rows, right=len(KINDS) + 1)
    return "\n".join([HEAD, *counts, "", *table(["Kind", "Meaning"], meanings), "", TAIL])


if __name__ == "__main__":
    (ROOT / PAGE).write_text(page(load(ROOT / DATA)))
