"""docs/project/documents.csv and the page that is made of it: every reference leads somewhere."""

from __future__ import annotations

import ast
import functools
import re

import pytest
from bench_results import read

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
from torch_images.config.matrix import matrix
from torch_images.config.types import Config
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
# The checks on a GPU that did not run there as they are now, by docs/gpu.md: they show nothing yet.
NEVER_RAN = {
    "test_mxfp8_scaled_product",
    "test_nvfp4_scaled_product",
    "test_xformers_attention",
}


@functools.cache
def parsed(path: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names of a file's tests, and its strings with those of the table that it imports."""
    tree = ast.parse((ROOT / path).read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    if "tests.decisions" in modules:
        strings |= parsed("tests/decisions.py")[1]
    return (
        frozenset(name for name in names if name.startswith("test_")),
        frozenset(text for text in strings if isinstance(text, str)),
    )


def kind_of(part: str) -> str:
    """What a part of a reference is. Raises AssertionError where it leads nowhere."""
    if part.startswith("https://"):
        assert re.fullmatch(r"https://[\w.-]+\.[a-z]+/\S*", part)
        return "url"
    path, mark, name = part.partition("::" if "::" in part else "#")
    assert (ROOT / path).is_file(), f"{path} does not exist"
    if mark == "#":
        assert name in slugs((ROOT / path).read_text()), f"{path} has no heading {name}"
        return "heading"
    if path.endswith(".py"):
        test, _, parameter = name.removesuffix("]").partition("[")
        tests, strings = parsed(path)
        assert test in tests, f"{path} has no test {test}"
        assert parameter in {"", *strings}, f"{path} does not have {parameter}"
        return "test"
    return kind_of_data(path, name)


def kind_of_data(path: str, name: str) -> str:
    """What a name in a file of data is. Raises AssertionError where it is not there."""
    if path.endswith(".csv"):
        lines = [line for line in LEDGER if line.image == name]
        assert lines, f"{path} has no line {name}"
        return "missing" if all(line.missing for line in lines) else "ledger"
    part = f"{path}::{name}"
    assert correction(ROOT, part) or figure(ROOT, part)
    return "correction" if correction(ROOT, part) else "figure"


def test_the_page_is_what_the_data_give() -> None:
    """If not: `python -m tests.documents`."""
    assert (ROOT / PAGE).read_text() == page(CLAIMS)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.document}: {claim.claim}")
def test_a_row_is_whole_and_leads_somewhere(claim: Claim) -> None:
    assert claim.document in DOCUMENTS
    assert claim.claim.endswith(".")
    assert claim.kind in KINDS
    assert {kind_of(part) for part in claim.references} <= REFERS[claim.kind]
    if claim.kind != "out of scope":
        assert claim.references
    if claim.kind in ("not run", "out of scope"):
        assert claim.note
    if claim.kind == "corrected":
        assert claim.note or "correction" in map(kind_of, claim.references)


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c.kind == "tested"], ids=lambda c: c.claim)
def test_what_is_tested_has_a_test_that_ran(claim: Claim) -> None:
    tests = [part.partition("::")[2] for part in claim.references if kind_of(part) == "test"]
    assert tests
    assert not {name.partition("[")[0] for name in tests} & NEVER_RAN


def test_what_is_cited_is_the_newest_of_its_kind(config: Config) -> None:
    """A report of an image, not of another torch, and an image that passed its checks once.

    That its inputs are those of today is no matter of unit tests: each change would need a build.
    """
    of_the_image = read(ROOT / "docs/benchmarks/h200-image/result.json")
    listed = {spec.id: spec for spec in matrix(config)}
    for part in {part for claim in CLAIMS for part in claim.references}:
        path, _, name = part.partition("::")
        if path == "docs/ledger.csv":
            spec = listed[name]
            state = ledger.states(config, [spec], LEDGER, ROOT, ROOT / "locks")[spec]
            assert state.built, f"{name}: {state.words}; run `./inv build --stale --select {name}`"
        elif path.startswith("docs/benchmarks/") and "image" not in path and "h100" not in path:
            assert path.endswith("h200-cutlass/result.json")
            assert not of_the_image.figure(name), f"{part} is in the report of an image, too"


def test_no_claim_is_there_twice() -> None:
    assert len({(claim.document, claim.claim) for claim in CLAIMS}) == len(CLAIMS)


def test_figures_of_the_documents_are_those_of_the_reference_data() -> None:
    """Each case of the reference data is a claim, with the time that it says."""
    for name, document in (("rtx5090", "fork"), ("h100", "pod")):
        for case in read(ROOT / "benchmarks" / "reference" / f"{name}.json").figures:
            key = f"docs/benchmarks/h200-image/result.json::{case.key}"
            found = [c for c in CLAIMS if c.document == document and key in c.references]
            assert [c for c in found if f"takes {case.median * 1e3:.2f} ms" in c.claim], case.key


def test_every_correction_of_the_reference_data_is_used() -> None:
    used = {part for claim in CLAIMS for part in claim.references}
    for path in sorted((ROOT / "benchmarks" / "reference").glob("*.json")):
        names = {row["what"] for row in read(path).corrections}
        assert {f"benchmarks/reference/{path.name}::{name}" for name in names} <= used
