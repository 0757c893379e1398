"""The record of layers, locks/layers.txt: what each layer of wheels, and each base, is packed as.

Layers are deterministic, so a build may take one from a registry by its recorded digest. The file
is no input of an image: nothing in an image changes where a line of it does.

# 366104871 bytes, sha256:<blob>
torch 2.11.0 --key=<64 hex> --tar=sha256:<64 hex>
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch_images.locks import grammar
from torch_images.locks.grammar import Entry

NAME = grammar.LAYERS

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LINE = re.compile(
    r"(?P<title>[!-~]+(?: [!-~]+)*) --key=(?P<key>[0-9a-f]{64}) --tar=(?P<tar>sha256:[0-9a-f]{64})"
)
# The largest blob that a registry of GitHub's takes is 10 GB; nothing here is near it.
_LARGEST = 10**11


@dataclass(frozen=True, kw_only=True)
class RecordedLayer:
    """A layer as it was packed.

    `key`: what decides about its bytes, as 64 hexadecimal digits (`LayerPlan.key`, or
        `bootstrap.key` for a base).
    `digest`, `size`: of the compressed blob, the size in bytes. `diff_id`: digest of the tar in it.
    """

    title: str
    key: str
    digest: str
    diff_id: str
    size: int


Record = Mapping[str, RecordedLayer]  # by key


def path(locks: Path) -> Path:
    """The file of the record in a folder of locks."""
    return locks / f"{NAME}.txt"


def read_record(locks: Path) -> dict[str, RecordedLayer]:
    """The record in a folder of locks; {} where there is none. Raises LockError."""
    file = path(locks)
    return parse_record(grammar.read(file)) if file.exists() else {}


def parse_record(text: str) -> dict[str, RecordedLayer]:
    """The layers of a record by key. Raises LockError where it is damaged."""
    _, entries = grammar.parse(text, NAME, (), dated=False)
    found = [_layer(entry) for entry in entries]
    grammar.check_once((layer.key for layer in found), NAME)
    return {layer.key: layer for layer in found}


def format_record(layers: Iterable[RecordedLayer]) -> str:
    """The text of a record: sorted by title, then by key, so equal layers give equal bytes."""
    ordered = sorted(layers, key=lambda layer: (layer.title, layer.key))
    return grammar.compose({}, (_entry(layer) for layer in ordered))


def _entry(layer: RecordedLayer) -> Entry:
    line = f"{layer.title} --key={layer.key} --tar={layer.diff_id}"
    return Entry(layer.size, layer.digest, line)


def _layer(entry: Entry) -> RecordedLayer:
    """The layer that an entry pins. Raises LockError."""
    found = _LINE.fullmatch(entry.line)
    sizes = 0 < entry.size <= _LARGEST
    if not found or not _DIGEST.fullmatch(entry.where) or not sizes or " --" in found["title"]:
        raise grammar.damaged(NAME, f"not a recorded layer: {entry.line[:80]}")
    return RecordedLayer(
        title=found["title"],
        key=found["key"],
        digest=entry.where,
        diff_id=found["tar"],
        size=entry.size,
    )
