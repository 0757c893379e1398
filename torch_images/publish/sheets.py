"""The datasheets that `datasheet.save` kept, read back. A file may be anybody's: it is checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_images.errors import ConfigError
from torch_images.jsondoc import MalformedError, member, parse
from torch_images.publish.datasheet import SCHEMA
from torch_images.publish.ledger import Proof

_LARGEST = 4 << 20  # bytes of a file


class OtherSchemaError(MalformedError):
    """A datasheet of an older or newer version of this program."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer: its digest, its bytes to pull and unpacked, and what it holds."""

    digest: str
    size: int
    unpacked: int
    holds: str


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What verification saw in one image: see `datasheet.describe` for each field.

    `versions`, `arches` and `skipped` are pairs of a name and a text.
    """

    id: str
    digest: str
    created: str
    version: str
    revision: str
    inputs: str
    references: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    arches: tuple[tuple[str, str], ...]
    layers: tuple[Layer, ...]
    passed: int
    skipped: tuple[tuple[str, str], ...]

    @property
    def size(self) -> int:
        """Bytes to pull."""
        return sum(layer.size for layer in self.layers)

    @property
    def unpacked(self) -> int:
        """Bytes unpacked."""
        return sum(layer.unpacked for layer in self.layers)


def load(path: Path) -> Any:
    """A datasheet as plain data, of which nothing but the schema is checked.

    Raises OtherSchemaError, and MalformedError for what is too large or no JSON.
    """
    with path.open("rb") as stream:
        return document(stream.read(_LARGEST + 1))


def document(text: bytes) -> Any:
    """The same of the bytes of a file."""
    if len(text) > _LARGEST:
        raise MalformedError("it is too large")
    found = parse(text)
    if member(found, "schema", kind=int) != SCHEMA:
        raise OtherSchemaError(f"its schema is not {SCHEMA}; make it again")
    return found


def read(folder: Path) -> tuple[dict[str, tuple[Sheet, ...]], int]:
    """All datasheets in a folder by the identifier of their image, the oldest inputs first.

    Those of another schema, from an older or newer version of this program, are only counted.
    Raises ConfigError, with the file, for one that `datasheet.save` does not write.
    """
    found: dict[str, list[Sheet]] = {}
    others = 0
    for path in sorted(folder.glob("*.json")):
        try:
            sheet = _sheet(load(path))
        except OtherSchemaError:
            others += 1
            continue
        except MalformedError as error:
            raise ConfigError(
                f"{path} is not a datasheet: {error}",
                "remove it, and print it anew with `invoke datasheet`",
            ) from None
        found.setdefault(sheet.id, []).append(sheet)
    return {
        name: tuple(sorted(sheets, key=lambda s: (s.created, s.digest)))
        for name, sheets in found.items()
    }, others


def trusted(sheet: Sheet, proof: Proof | None, namespace: str) -> bool:
    """Whether a datasheet is of an image that others can have: in the ledger, or published.

    Of other builds of this machine, such as those that tests make of stand-ins, nobody else knows.
    """
    proved = proof is not None and bool(proof.inputs) and sheet.inputs == f"sha256:{proof.inputs}"
    return proved or bool(published(sheet, namespace))


def published(sheet: Sheet, namespace: str) -> tuple[str, ...]:
    """The names that an image has in a registry, below its owner."""
    return tuple(name for name in sheet.references if name.startswith(f"{namespace}/"))


def _sheet(document: Any) -> Sheet:
    text = {
        name: member(document, name, kind=str)
        for name in ("id", "digest", "created", "version", "revision", "inputs")
    }
    references = member(document, "references", kind=list)
    layers = member(document, "layers", kind=list)
    return Sheet(
        **text,
        references=tuple(member(references, i, kind=str) for i in range(len(references))),
        versions=_pairs(document, "versions"),
        arches=_pairs(document, "arches"),
        layers=tuple(
            Layer(
                digest=member(layers, i, "digest", kind=str),
                size=member(layers, i, "size", kind=int),
                unpacked=member(layers, i, "unpacked", kind=int),
                holds=member(layers, i, "holds", kind=str),
            )
            for i in range(len(layers))
        ),
        passed=member(document, "verification", "passed", kind=int),
        skipped=_pairs(document, "verification", "skipped-checks"),
    )


def _pairs(document: Any, *path: str) -> tuple[tuple[str, str], ...]:
    """An object of texts, in its order."""
    held = member(document, *path, kind=dict)
    return tuple((str(key), member(held, key, kind=str)) for key in held)
