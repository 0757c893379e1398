"""Tables as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, right: int = 0) -> list[str]:
    r"""The lines of a table: header, rule, one line a row. "|" in a cell becomes "\|".

    The last `right` columns are aligned to the right.
    """
    rule = ["---"] * (len(header) - right) + ["--:"] * right
    first = _row(header).replace("  ", " ")  # an empty header cell is one space
    return [first, f"|{'|'.join(rule)}|", *map(_row, rows)]


def _row(cells: Sequence[object]) -> str:
    return "".join(["| ", " | ".join(str(cell).replace("|", r"\|") for cell in cells), " |"])
