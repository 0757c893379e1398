from __future__ import annotations

from torch_images.markdown import table


def test_a_table_has_a_header_a_rule_and_rows() -> None:
    assert table(["a", ""], [("x", 1), ("", 2.5)], right=1) == [
        "| a | |",
        "|---|--:|",
        "| x | 1 |",
        "|  | 2.5 |",
    ]


def test_a_cell_cannot_end_itself() -> None:
    assert table(["a"], [("x | y",)])[2] == r"| x \| y |"
