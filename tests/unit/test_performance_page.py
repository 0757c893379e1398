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
BESIDE_ANOTHER = ("cold", "tuned", "both")
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


def test_what_the_command_of_a_user_takes_its_time_for() -> None:
    rounds = measured("user")
    build, check = (
        statistics.median(one[f"{name}, seconds"] for one in rounds)
        for name in ("building", "checking")
    )
    assert f": {build:.1f} s to build, {check:.1f} s to check |" in PAGE


@pytest.mark.parametrize("name", COMMANDS)
def test_seconds_of_commands(name: str) -> None:
    rounds = measured("commands")
    assert len(rounds) == 3
    seconds = spread((one[f"{name} seconds"] for one in rounds), " s", 2)
    line = rf"^\| `invoke (--)?{name}` \| `commands` \| {re.escape(seconds)} \|"
    assert re.search(line, PAGE, re.MULTILINE)


def test_bytes_to_pull() -> None:
    ours = same(measured("cold"), "our bytes")
    plain = statistics.median(one["plain bytes"] for one in measured("cold"))
    pruned = same(measured("pruned"), "our bytes")
    [small] = measured("small")
    tuned = statistics.median(one["plain bytes"] for one in measured("tuned"))
    pairs = (("cold", ours, plain), ("pruned", pruned, plain), ("tuned", ours, tuned))
    for row, size, other in pairs:
        cells = (gigabytes(size), gigabytes(other), f"{size / other:.3f}")
        assert f"| `{row}` | {' | '.join(cells)} |" in PAGE
    assert f"({small['our seconds']:.0f} s; " in PAGE
    for name, of, size in (
        ("`runtime`", ours, small["our bytes"]),
        ("`runtime` for 9.0 alone", pruned, small["pruned bytes"]),
    ):
        sizes = " | ".join(map(gigabytes, (size, of, plain)))
        assert f"| {name} | {sizes} | {size / plain:.3f} |" in PAGE
    [told] = re.findall(r"^\| Bytes to pull \| (.+) \|$", README, re.MULTILINE)
    assert f"torch 2.14.1: {gigabytes(ours)}, {gigabytes(pruned)} for one architecture" in told
    packed = f"{gigabytes(small['our bytes'])} and {gigabytes(small['pruned bytes'])}"
    assert f"small`](docs/performance.md#bytes-to-pull) {packed} |" in told
    assert f"the same wheels by a plain Dockerfile: {gigabytes(plain)}" in told


def test_bytes_of_a_second_image_and_of_the_next_release() -> None:
    variant = measured("variant")
    added, whole = (gigabytes(same(variant, f"{name} bytes")) for name in ("our", "whole"))
    assert f"| `variant` | {added} of {whole} |" in PAGE
    [release] = measured("release")
    pulled = {name: size for name, size in release.items() if name.startswith("our ")}
    assert len(pulled) == 3
    for name, size in pulled.items():
        older, newer = name.removeprefix("our ").removesuffix(", bytes").split(" to ")
        of = release[f"whole {newer}, bytes"]
        line = f"| {older} -> {newer} | {gigabytes(size)} of {gigabytes(of)} |"
        assert line in PAGE
        if plain := release.get(f"plain {older} to {newer}, bytes"):
            assert f"{line} {gigabytes(plain)} | {size / plain:.2f} |" in PAGE


def test_disk_on_the_way() -> None:
    rounds = measured("cold")
    ours, plain = (statistics.median(one[f"{n} disk"] for one in rounds) for n in ("our", "plain"))
    of = ours / same(rounds, "unpacked bytes")
    assert f"| `cold` | {gigabytes(ours)} | {gigabytes(plain)} | {of:.2f} of the unpacked" in PAGE
