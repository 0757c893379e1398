"""CSV files of the project with one record a line, such as the ledger: read and written whole.

They are committed and edited by people, so each field of each line is checked when it is read.
"""

from __future__ import annotations

import csv
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torch_images.errors import ConfigError, shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")

IMAGE = re.compile(r"cu[0-9]{3}-[a-z0-9._-]{1,120}")
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TEXT = re.compile(r"[^\x00-\x1f\x7f]{0,300}")
_LARGEST = 4 << 20  # bytes; a line has some 400


def read(
    root: Path,
    name: Path,
    kind: type[Record],
    patterns: Mapping[str, re.Pattern[str]],
    key: Callable[[Record], object],
) -> list[Record]:
    """The records of `root / name`, whose fields all are text; [] if the file is missing.

    Each field must match its pattern as a whole, and no two records may have the same key. Raises
    ConfigError, with the line, for a line that `write` does not write.
    """
    path = root / name
    if not path.exists():
        return []
    text = path.read_bytes()[:_LARGEST].decode("utf-8", "replace")
    names = [field.name for field in fields(kind)]
    records: dict[object, Record] = {}
    try:
        rows = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise ConfigError(f"{name}: not a CSV file: {error}", "restore it from git") from None
    for number, row in enumerate(rows, 1):
        if number == 1 and row == names:
            continue
        fits = len(row) == len(names) and all(
            patterns[n].fullmatch(value) for n, value in zip(names, row, strict=True)
        )
        record = kind(**dict(zip(names, row, strict=True))) if number > 1 and fits else None
        if record is None or key(record) in records:
            problem = f"not a line of this file: {shown(','.join(row))}"
            raise ConfigError(f"{name}:{number}: {problem}", "restore it from git")
        records[key(record)] = record
    return list(records.values())


def write(root: Path, name: Path, kind: type[Record], records: Iterable[Record]) -> None:
    """Write `root / name` in one step, so that no reader sees a part of it."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.stem}-", delete=False, newline="", encoding="utf-8"
    ) as file:
        rows = csv.DictWriter(file, [f.name for f in fields(kind)], lineterminator="\n")
        rows.writeheader()
        rows.writerows(asdict(record) for record in records)
    os.chmod(file.name, 0o644)  # noqa: PTH101  beside os.replace
    os.replace(file.name, path)
