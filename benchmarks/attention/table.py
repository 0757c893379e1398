"""The result of `python /attention` as a table: `python -m benchmarks.attention.table FILE`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

COLUMNS = {"call": "one call", "queued": "calls in a row", "training": "forward and backward"}


def table(result: Mapping[str, Any]) -> Iterator[str]:
    """Lines of Markdown: torch's milliseconds, and what ours take of them."""
    yield f"| {result['gpu']}, torch {result['torch']} | {' | '.join(COLUMNS.values())} |"
    yield f"|---|{'--:|' * len(COLUMNS)}"
    for row in result["rows"]:
        batch, heads, keys, length, width = row["shape"]
        grouped = f" ({keys} of keys)" if keys != heads else ""
        mask = ", causal" if row["causal"] else ""
        name = f"{batch} x {heads}{grouped} x {length} x {width}, {row['dtype']}{mask}"
        cells = (
            f"{pair['stock']:.3f} -> {pair['ours']:.3f}, **{pair['ratio']:.2f}**"
            for pair in (row["pairs"][column] for column in COLUMNS)
        )
        yield f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    print("\n".join(table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
