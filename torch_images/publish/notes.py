"""Two datasheets of an image, or those of two releases -> what changed, as Markdown.

Pure but for `read`, whose files may be anybody's: what is not a name or a version is refused, and
what stands in the notes stands in code spans.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from torch_images.errors import UsageError, shown
from torch_images.jsondoc import MalformedError, member
from torch_images.locks.grammar import is_version
from torch_images.publish import sheets
from torch_images.publish.datasheet import PACKAGES, size_text

_MOST = 5000  # entries in one place
_MOST_BYTES = 10**13  # of a layer or an image
_TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+~:@=-]{0,199}")  # nothing that Markdown reads
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TORCH = re.compile(r"-torch[^-]+")  # the release in an image's identifier
_TITLES = {"torch": "PyTorch", "cuda": "CUDA", "triton": "Triton", "python": "Python"}
_KINDS = {"cuda": "CUDA libraries", "python": "Python packages", "debian": "Debian packages"}


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What notes need of a datasheet.

    `packages` has version by name, for each of the kinds in datasheet.PACKAGES; `security` the
    names of Debian packages that come from its archive of security fixes. `layers` has bytes to
    pull by digest.
    """

    id: str
    versions: Mapping[str, str]
    arches: Mapping[str, str]
    driver: str
    compat: str
    features: frozenset[str]
    packages: Mapping[str, Mapping[str, str]]
    security: frozenset[str]
    layers: Mapping[str, int]
    unpacked: int


def read(path: Path) -> tuple[Sheet, ...]:
    """The datasheet in a file, or those in a folder's files *.json, by identifier.

    Raises UsageError for a path that is missing, and for what `invoke datasheet` does not write.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist", "give a datasheet's JSON, or a folder of them")
    found = []
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        try:
            found.append(_sheet(sheets.load(file)))
        except MalformedError as error:
            problem = f"{file} is no datasheet: {error}"
            raise UsageError(problem, "`invoke datasheet IMAGE --json` writes one") from None
    return tuple(sorted(found, key=lambda one: one.id))


def sheet(text: bytes) -> Sheet:
    """A datasheet. Raises MalformedError for what `describe` of datasheet.py does not give."""
    return _sheet(sheets.document(text))


def _sheet(document: Any) -> Sheet:
    versions = _texts(document, "versions")
    if versions.keys() != _TITLES.keys() or not is_version(versions["torch"]):
        raise MalformedError(f"its versions are not those of {', '.join(_TITLES)}")
    layers = {}
    for number in range(_count(member(document, "layers", kind=list))):
        digest = member(document, "layers", number, "digest", kind=str)
        if not _DIGEST.fullmatch(digest):
            raise MalformedError(f"{shown(digest)} is not a digest")
        layers[digest] = _bytes(document, "layers", number, "size")
    return Sheet(
        id=_text(member(document, "id", kind=str)),
        versions=versions,
        arches=_texts(document, "arches"),
        driver=_text(member(document, "driver", "native", kind=str)),
        compat=member(document, "compat", kind=str) and _text(document["compat"]),
        features=_names(document, "features"),
        packages={kind: _texts(document, "packages", kind) for kind in PACKAGES},
        security=_names(document, "security"),
        layers=layers,
        unpacked=_bytes(document, "size", "unpacked"),
    )


def notes(old: Sequence[Sheet], new: Sequence[Sheet]) -> str:
    """What changed, for those who use the images; those with the same changes share a section.

    An image is compared with the old one of its identifier, else with that of the newest earlier
    release of torch that is alike in all else.
    """
    groups: dict[tuple[str, ...], list[tuple[Sheet, Sheet]]] = {}
    first = []
    for image in new:
        if before := _before(image, old):
            groups.setdefault(tuple(changes(before, image)), []).append((before, image))
        else:
            first.append(image)
    lines = []
    for changed, pairs in groups.items():
        lines += [f"## {', '.join(_code(image.id) for _, image in pairs)}", ""]
        lines += [*(changed or ["- The same versions of everything."]), f"- {_pull(pairs)}", ""]
    if first:
        lines += ["## New", ""]
        lines += [f"- {_code(i.id)}: {size_text(sum(i.layers.values()))} to pull" for i in first]
    return "\n".join(lines).rstrip() + "\n" if lines else "No image is new.\n"


def changes(old: Sheet, new: Sheet) -> list[str]:
    """What differs between two images, but for sizes: a line of Markdown each."""
    lines = [
        f"- {title}: {_code(old.versions[key])} to {_code(new.versions[key])}"
        for key, title in _TITLES.items()
        if old.versions[key] != new.versions[key]
    ]
    if old.driver != new.driver:
        drivers = f"{_code(old.driver)} to {_code(new.driver)}"
        lines.append(f"- Oldest driver that runs it natively: {drivers}")
    if old.compat != new.compat:
        lines.append(f"- Compat library: {_code(old.compat)} to {_code(new.compat)}")
    lines += _listed("Architectures", _differences(old.arches, new.arches))
    names = (dict.fromkeys(found.features, "") for found in (old, new))
    lines += _listed("Features of PyTorch", _differences(*names))
    for kind in PACKAGES:
        lines += _listed(_KINDS[kind], _differences(old.packages[kind], new.packages[kind]))
    before, now = old.packages["debian"], new.packages["debian"]
    fixed = sorted(n for n in new.security & before.keys() if before[n] != now.get(n))
    return [*lines, *_listed("Of these with security fixes of Debian's", [_code(n) for n in fixed])]


def _before(image: Sheet, old: Iterable[Sheet]) -> Sheet | None:
    """The old image that one follows; None for the first of its kind."""
    alike = [s for s in old if _TORCH.sub("", s.id) == _TORCH.sub("", image.id)]
    same = next((s for s in alike if s.id == image.id), None)
    earlier = [s for s in alike if _torch(s) < _torch(image)]
    return same or max(earlier, key=_torch, default=None)


def _torch(image: Sheet) -> Version:
    return Version(image.versions["torch"])


def _pull(pairs: Sequence[tuple[Sheet, Sheet]]) -> str:
    """What somebody pulls who has the images of before, in the smallest and the largest case."""
    sizes = [
        (sum(n for digest, n in new.layers.items() if digest not in old.layers), new)
        for old, new in pairs
    ]
    (least, _), (most, image) = min(sizes, key=_first), max(sizes, key=_first)
    span = size_text(most) if least == most else f"{size_text(least)} to {size_text(most)}"
    total, unpacked = sum(image.layers.values()), image.unpacked
    return f"To pull anew: {span} of {size_text(total)}; unpacked {size_text(unpacked)}"


def _first(pair: tuple[int, Sheet]) -> int:
    return pair[0]


def _differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What is other, new and gone, a few words each; "" stands for a thing without a version."""
    common = sorted(old.keys() & new.keys())
    changed = [name for name in common if old[name] != new[name]]
    added = sorted(new.keys() - old.keys())
    return [
        *(f"{_code(name)} {_code(old[name])} to {_code(new[name])}" for name in changed),
        *(f"new: {_code(name)}{f' {_code(new[name])}' if new[name] else ''}" for name in added),
        *(f"gone: {_code(name)}" for name in sorted(old.keys() - new.keys())),
    ]


def _code(text: str) -> str:
    return f"`{text}`" if text else "none"


def _listed(title: str, words: Sequence[str]) -> list[str]:
    return [f"- {title}: {', '.join(words)}"] if words else []


def _text(text: str) -> str:
    if not _TEXT.fullmatch(text):
        raise MalformedError(f"'{shown(text)}' is no name and no version")
    return text


def _texts(document: Any, *path: str) -> dict[str, str]:
    """An object of texts at a path."""
    found = member(document, *path, kind=dict)
    _count(found)
    return {_text(name): _text(member(found, name, kind=str)) for name in found}


def _names(document: Any, key: str) -> frozenset[str]:
    """A list of texts under a key."""
    count = _count(member(document, key, kind=list))
    return frozenset(_text(member(document, key, n, kind=str)) for n in range(count))


def _count(found: Any) -> int:
    if len(found) > _MOST:
        raise MalformedError(f"it has more than {_MOST} entries in one place")
    return len(found)


def _bytes(document: Any, *path: str | int) -> int:
    size = member(document, *path, kind=int)
    if not 0 <= size <= _MOST_BYTES:
        raise MalformedError("a size is none that an image can have")
    return size
