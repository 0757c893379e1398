"""The options that the builds of PyTorch and Triton know.

An option that is misspelt is ignored without a word, so images.yaml is held against this list when
it is read. The build itself asks again, of the very tree that it compiles: see
scripts/image/source/options.py. To bring the list up to date, run that on a checkout.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_LISTS = Path(__file__).parent / "known"


@cache
def known_options(name: str) -> tuple[str, ...]:
    """The options of "torch" or "triton"."""
    text = (_LISTS / f"{name}-options.txt").read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))
