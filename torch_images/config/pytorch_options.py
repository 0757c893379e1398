"""The options that the builds of PyTorch and Triton know.

Their builds ignore a misspelt option without a message. Therefore images.yaml is compared with the
lists in known/ when it is read. The build compares again, with the tree that it compiles: see
scripts/image/source/options.py. To bring a list up to date, run that on a checkout.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_LISTS = Path(__file__).parent / "known"


@cache
def known_options(name: str) -> tuple[str, ...]:
    """The names of the options of "torch" or "triton", as listed in known/."""
    text = (_LISTS / f"{name}-options.txt").read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))
