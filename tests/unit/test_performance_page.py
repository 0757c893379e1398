"""docs/performance.md and the README have the figures of builds.json."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text()
README = (ROOT / "README.md").read_text()
Rounds = list[dict[str, float]]

# Rows of the page by what is read from the report: each is measured three times.
BESIDE_ANOTHER = ("cold", "whole", "tuned")
ALONE = ("user", "again", "edit")
COMMANDS = ("list", "matrix", "render")


def measured(row: str) -> Rounds:
    text = (ROOT / "docs" / "performance" / "builds.json").read_text()
    found: Rounds = json.loads(text)["rows"][row]
    return found


def spread(values: Iterable[float], unit: str = "", digits: int = 1) -> str:
    """The median, the least and the greatest, as the page writes them."""
    held = list(values)
    middle, low, high = (f"{n:.{digits}f}" for n in (statistics.median(held), min(held), max(held)))
    return f"{middle}{unit} ({low} to {high})"


def gigabytes(value: float) -> str:
    return f"{value / 1e9:.2f} GB"


def same(rounds: Rounds, name: str) -> float:
    """What is the same in each round, as bytes of equal images are."""
    [value] = {one[name] for one in rounds}
    return value


@pytest.mark.parametrize("row", BESIDE_ANOTHER)
def test_seconds_beside_another_build(row: str) -> None:
    rounds = measured(row)
    assert len(rounds) == 3
    ours, plain = ([one[f"{side} seconds"] for one in rounds] for side in ("our", "plain"))
    ratios = (a / b for a, b in zip(ours, plain, strict=True))
    cells = (spread(ours, " s"), spread(plain, " s"), spread(ratios, digits=2))
    assert f"| `{row}` | {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("row", ALONE)
def test_seconds_of_ours_alone(row: str) -> None:
    rounds = measured(row)
    assert len(rounds) == 3
    assert f"| `{row}` | {spread((one['our seconds'] for one in rounds), ' s')}" in PAGE


@pytest.mark.parametrize("name", COMMANDS)
def test_seconds_of_commands(name: str) -> None:
    rounds = measured("commands")
    assert len(rounds) == 3
    seconds = spread((one[f"{name} seconds"] for one in rounds), " s", 2)
    line = rf"^\| `\./inv (--)?{name}` \| `commands` \| {re.escape(seconds)} \|"
    assert re.search(line, PAGE, re.MULTILINE)


def test_bytes_to_pull() -> None:
    """Also those of the README, of a second image, and of the next release."""
    [told] = re.findall(r"^\| Bytes to pull, torch [0-9.]+ \| (.+) \|$", README, re.MULTILINE)
    for row in BESIDE_ANOTHER:
        ours = same(measured(row), "our bytes")
        other = statistics.median(one["plain bytes"] for one in measured(row))
        cells = (gigabytes(ours), gigabytes(other), f"{ours / other:.3f}")
        assert f"| `{row}` | {' | '.join(cells)} |" in PAGE
        if row != "tuned":  # the README has the plain build beside ours
            assert gigabytes(ours) in told
            assert gigabytes(other) in told
    variant = measured("variant")
    added, whole = (gigabytes(same(variant, f"{name} bytes")) for name in ("our", "whole"))
    assert f"| `variant` | {added} of {whole} |" in PAGE
    [release] = measured("release")
    for name, size in release.items():
        if name.startswith("our "):
            older, newer = name.removeprefix("our ").removesuffix(", bytes").split(" to ")
            of = release[f"whole {newer}, bytes"]
            assert f"| {older} -> {newer} | {gigabytes(size)} of {gigabytes(of)} |" in PAGE
