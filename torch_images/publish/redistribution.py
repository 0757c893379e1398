"""May the files of an image be published? A comparison with lists of NVIDIA's licences.

It reads the image's bill of materials for the licence of each package, and the RECORD of each wheel
for its files. What it finds is not legal advice: docs/licenses.md says what it leaves open.
"""

from __future__ import annotations

import csv
import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from packaging.utils import canonicalize_name

from torch_images import jsondoc
from torch_images.config.types import Accepted
from torch_images.errors import PublishError, VerifyError
from torch_images.host.engine import Engine
from torch_images.publish.terms import BUNDLED, CCCL, CUDA, TERMS
from torch_images.verify import sbom

COMPAT, TOOLKIT = "cuda-compat", "cuda-toolkit"
_SHOWN, _PACKAGES = 3, 6  # files and packages that an error names
_EMPTY = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"  # SHA-256 of a file without content
# Each line is a path, NUL, and a row of RECORD; nothing follows for files that no wheel brought.
_ASK = r"""
find / -xdev -type f -path '*.dist-info/RECORD' -exec grep -HZ '' {} + &&
find /opt /usr/local -xdev -type f '(' -path '/opt/cuda-compat/*' -o -path '/usr/local/cuda*' ')' \
    -printf '%p\0\n'
"""
_RECORD = re.compile(r"/(?P<folder>[A-Za-z0-9_.+!-]+)-[^-/]+\.dist-info/RECORD")
_RESTRICTED = re.compile(r"nvidia|proprietary", re.IGNORECASE)
# The stub of libcuda that install-toolkit compiles where wheels have the toolkit.
_STUB = re.compile(r"/usr/local/cuda-[0-9.]+/lib64/stubs/libcuda\.so")


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package of an image.

    `licences`: what the bill of materials says.
    `files`: path and SHA-256 of each file, as RECORD writes them; "" for a hash that it lacks.
    """

    name: str
    licences: tuple[str, ...]
    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A file of NVIDIA's that no list has, and `why`: the list, or what images.yaml says."""

    package: str
    path: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is known of NVIDIA's files in an image.

    `listed` counts those that a licence lists. `accepted` are those that images.yaml answers for,
    `unlisted` all others.
    """

    listed: int
    accepted: tuple[Finding, ...] = ()
    unlisted: tuple[Finding, ...] = ()

    def summary(self) -> str:
        """One line for people."""
        text = f"{self.listed} files of NVIDIA's are listed as distributable"
        if self.accepted:
            text += f", images.yaml answers for {len(self.accepted)}"
        return text + (f", {_counted(self.unlisted)}" if self.unlisted else "")

    def document(self) -> dict[str, Any]:
        """The same as plain data, for a datasheet."""
        return {
            "summary": self.summary(),
            "listed": self.listed,
            "accepted": dict(Counter(f"{f.package}: {f.why}" for f in self.accepted)),
            "unlisted": dict(Counter(f.package for f in self.unlisted)),
        }


def judge(packages: Iterable[Package], accepted: Iterable[Accepted] = ()) -> Verdict:
    """Compare the files of packages with the lists, and the rest with what is accepted."""
    answers = tuple(accepted)
    listed = 0
    ours: list[Finding] = []
    rest: list[Finding] = []
    for package in packages:
        for path, why in _restricted(package):
            if not why:
                listed += 1
                continue
            answer = next((a for a in answers if _covers(a, package.name, path)), None)
            found = Finding(package=package.name, path=path, why=answer.reason if answer else why)
            (ours if answer else rest).append(found)
    return Verdict(listed=listed, accepted=tuple(ours), unlisted=tuple(rest))


def require(verdict: Verdict) -> None:
    """Raise PublishError where a file may not be published."""
    if verdict.unlisted:
        first = ", ".join(f.path for f in verdict.unlisted[:_SHOWN])
        raise PublishError(
            f"a public registry may not get this image: {_counted(verdict.unlisted)}, such as "
            f"{first}",
            "read docs/licenses.md; then push to a registry that is not public with --private, or "
            "say in `redistribution` of images.yaml by what right you publish them",
        )


def is_public(namespace: str) -> bool:
    """Whether others may reach a registry: any but one on this machine."""
    host = namespace.partition("/")[0].rpartition(":")[0] or namespace.partition("/")[0]
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host != "localhost"


def read_packages(image: str, engine: Engine) -> tuple[Package, ...]:
    """The packages of an image with their files, from the image itself.

    Raises VerifyError where the image does not say what it holds.
    """
    with engine.container(image, network_mode="none") as container:
        answer = container.exec("sh", "-c", _ASK)
    if answer.code:
        raise VerifyError(f"{image}: its files cannot be listed: {answer.output.strip()[:200]}")
    return packages_of(answer.output, sbom.read(image, engine))


def packages_of(listing: str, bill: str) -> tuple[Package, ...]:
    """The packages that a listing of RECORDs names, with the licences of a bill of materials.

    Raises VerifyError where one of both cannot be understood.
    """
    try:
        licences = _licences(jsondoc.parse(bill))
    except jsondoc.MalformedError as error:
        raise VerifyError(f"the bill of materials cannot be understood: {error}") from None
    held: dict[str, list[tuple[str, str]]] = {}
    for line in listing.splitlines():
        path, _, row = line.partition("\0")
        if record := _RECORD.search(path):
            cells = next(csv.reader([row]), [])
            if len(cells) > 1:
                name = str(canonicalize_name(record["folder"]))
                held.setdefault(name, []).append((cells[0], cells[1].removeprefix("sha256=")))
        elif path.startswith("/opt/cuda-compat/"):
            held.setdefault(COMPAT, []).append((path[1:], ""))
        elif path.startswith("/usr/local/cuda") and not _STUB.fullmatch(path):
            held.setdefault(TOOLKIT, []).append((path[1:], ""))
    if not held:
        raise VerifyError("the image names no files of packages")
    return tuple(
        Package(name=name, licences=licences.get(name, ()), files=tuple(files))
        for name, files in sorted(held.items())
    )


def _restricted(package: Package) -> Iterator[tuple[str, str]]:
    """Each file of NVIDIA's in a package: its path, and why it is not listed; "" if it is."""
    content = [(p, text) for p, text in package.files if ".dist-info/" not in p and text != _EMPTY]
    texts = {text for _, text in package.files}
    terms = next((t for t in TERMS if texts & set(t.texts)), None)
    if package.name in (COMPAT, TOOLKIT):
        terms = CUDA
    elif terms is None and not _needs_terms(package):
        content = [file for file in content if _matches(file[0], BUNDLED)]
        terms = CUDA
    for path, _ in content:
        if terms is None:
            yield path, "its package carries no licence that this project has read"
        else:
            listed = terms.lists(path) or _matches(path, CCCL)
            yield path, "" if listed else f"not in {terms.name}"


def _needs_terms(package: Package) -> bool:
    """Whether a package without a known licence text is NVIDIA's, or another one's property."""
    stated = [word for word in package.licences if word != "unknown"]
    return (
        any(_RESTRICTED.search(word) for word in stated)
        if stated
        else package.name.startswith(("nvidia-", "cuda-"))
    )


def _covers(answer: Accepted, package: str, path: str) -> bool:
    return package in answer.packages and _matches(path, answer.files)


def _matches(path: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(path, glob) for glob in globs)


def _counted(findings: Iterable[Finding]) -> str:
    counts = Counter(f.package for f in findings)
    names = ", ".join(f"{name} {count}" for name, count in counts.most_common(_PACKAGES))
    more = f", {len(counts) - _PACKAGES} packages more" if len(counts) > _PACKAGES else ""
    return f"no licence lists {sum(counts.values())} files as distributable ({names}{more})"


def _licences(bill: Any) -> Mapping[str, tuple[str, ...]]:
    """The licences of each Python package, by its name. Raises MalformedError."""
    found: dict[str, tuple[str, ...]] = {}
    for part in jsondoc.member(bill, "components", kind=list):
        if not jsondoc.optional(part, "purl", kind=str).startswith("pkg:pypi/"):
            continue
        words = []
        for entry in jsondoc.optional(part, "licenses", kind=list):
            licence = jsondoc.optional(entry, "license", kind=dict)
            words += [str(licence.get(key, "")) for key in ("id", "name") if licence.get(key)]
            words += [e for e in [jsondoc.optional(entry, "expression", kind=str)] if e]
        found[str(canonicalize_name(jsondoc.member(part, "name", kind=str)))] = tuple(words)
    return found
