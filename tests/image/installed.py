"""Compare installed files with the RECORDs of wheels, dpkg's checksums, and Python sources.

The image's own Python runs this file as `python3 -I -c SOURCE QUESTION`, so it may import only the
standard library. QUESTION is a JSON object with five lists: `sites`, folders with *.dist-info;
`unchanged`, names of those whose files are known to be right; `changed`, files whose RECORD is
known to be wrong, as "SHA-256 BYTES PATH" with the path below a site; `packages`, names of Debian
packages; `bytecode`, folders with Python files. The answer, printed as JSON, has the lists
`wheels`, `debs` and `bytecode`: one line for each problem.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_INFO = "var/lib/dpkg/info"

# What packages may not install into an image. scripts/image/build/documentation.dpkg has the same
# list. It is repeated here on purpose: a check must not read its expectation from what it checks.
_LEFT_OUT = re.compile(r"/usr/share/(?:doc/(?!.*/copyright$)|info/|locale/|man/).+")


@dataclass(frozen=True, order=True)
class Claim:
    """What an installer recorded about one file.

    `algorithm` is a name of hashlib, `digest` is in hexadecimal, `size` in bytes, None if unknown.
    """

    algorithm: str
    digest: str
    size: int | None = None


# The claims about each file, by path. If several packages have a file, one claim must hold.
Claims = dict[str, set[Claim]]


def wheels(site: Path, names: str = "*.dist-info") -> tuple[Claims, list[str]]:
    """The claims of the wheels in a folder, and the problems of the RECORDs themselves.

    A RECORD has a digest of every file but itself.
    """
    claims: Claims = {}
    problems = []
    for info in sorted(site.glob(names)):
        record = info / "RECORD"
        if not record.is_file():
            problems.append(f"{record} is missing")
            continue
        with record.open(encoding="utf-8", newline="") as stream:
            for row in csv.reader(stream):
                path = os.path.normpath(site / row[0])
                algorithm, _, digest = row[1].partition("=")
                if path == str(record):
                    continue
                if algorithm not in ("sha256", "sha384", "sha512") or not row[2].isdigit():
                    problems.append(f"{path} has no digest in {info.name}")
                    continue
                plain = base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
                claims.setdefault(path, set()).add(Claim(algorithm, plain, int(row[2])))
    return claims, problems


def debs(root: Path, packages: Iterable[str]) -> tuple[Claims, list[str]]:
    """The claims of Debian packages about their files, and a line for each file without one.

    The claims are the packages' md5sums, and for conffiles those in dpkg's status file. dpkg leaves
    documentation out, so a missing documentation file is no problem. A file that another package
    has diverted is read at its new path.
    """
    diverted = _diversions(root)
    conffiles = _conffiles(root)
    claims: Claims = {}
    listed: dict[str, str] = {}  # the package of each file
    problems = []
    for name in packages:
        rows = list(conffiles.get(name, ()))
        for line in _lines(root, name, "md5sums"):
            digest, _, path = line.partition("  ")
            rows.append((f"/{path}", digest))
        for path, digest in rows:
            other, owner = diverted.get(path, (path, name))
            place = other if owner != name else path
            whole = _below(root, place)
            if os.path.lexists(whole) or not _LEFT_OUT.fullmatch(place):
                claims.setdefault(whole, set()).add(Claim("md5", digest))
        files = _lines(root, name, "list")
        problems += [] if files else [f"{name} is not installed"]
        listed |= {_below(root, path): name for path in files}
    problems += [
        f"{path} has no checksum in {name}"
        for path, name in listed.items()
        if path not in claims and Path(path).is_file() and not Path(path).is_symlink()
    ]
    return claims, problems


def differences(claims: Mapping[str, set[Claim]]) -> list[str]:
    """A line for each file that meets none of its claims. Reads files on all processors."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = pool.map(lambda item: _difference(*item), claims.items())
        return [problem for problem in found if problem]


def stale_bytecode(folder: Path, claims: Mapping[str, object]) -> list[str]:
    """A line for each bytecode file below a folder that does not match its source.

    compile-bytecode writes the hash of the source into the header (PEP 552). Bytecode that a wheel
    brought is in `claims` and is left out.
    """
    found = []
    for path in sorted(folder.rglob("__pycache__/*.pyc")):
        if str(path) in claims:
            continue
        source = _source(path)
        with path.open("rb") as stream:
            header = stream.read(16)
        if not source.is_file():
            found.append(f"{path} has no source")
        elif header[:8] != importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little"):
            found.append(f"{path} is not marked as unchecked bytecode of this Python")
        elif header[8:] != importlib.util.source_hash(source.read_bytes()):
            found.append(f"{path} was compiled from another source")
    return found


def _source(cached: Path) -> Path:
    """The Python file of a bytecode file.

    Its name may have more dots than Python's own function takes: fbgemm-gpu 1.9 has such files.
    """
    try:
        return Path(importlib.util.source_from_cache(str(cached)))
    except ValueError:
        name = cached.name.removesuffix(f".{sys.implementation.cache_tag}.pyc")
        return cached.parent.parent / f"{name}.py"


def _difference(path: str, claims: set[Claim]) -> str:
    """How one file differs from its claims; "" if it meets one of them."""
    try:
        with open(path, "rb") as stream:  # noqa: PTH123  a path is faster to open as it is
            size = os.fstat(stream.fileno()).st_size
            possible = [claim for claim in claims if claim.size in (None, size)]
            if not possible:
                return f"{path} has {size} bytes, not {min(c.size or 0 for c in claims)}"
            for algorithm in sorted({claim.algorithm for claim in possible}):
                stream.seek(0)
                digest = hashlib.file_digest(stream, algorithm).hexdigest()
                if any((c.algorithm, c.digest) == (algorithm, digest) for c in possible):
                    return ""
            return f"{path} has other content"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"


def _below(root: Path, path: str) -> str:
    """The path below `root` of a path that dpkg names."""
    return os.path.normpath(root / path.lstrip("/"))


def _lines(root: Path, package: str, kind: str) -> list[str]:
    """The lines of a file that dpkg keeps for a package, such as its `list` or `md5sums`.

    The names of these files end with the architecture where a package may have several.
    """
    found = (*root.glob(f"{_INFO}/{package}.{kind}"), *root.glob(f"{_INFO}/{package}:*.{kind}"))
    return [line for path in found for line in path.read_text(encoding="utf-8").splitlines()]


def _diversions(root: Path) -> dict[str, tuple[str, str]]:
    """The new path of each diverted file and the package that diverted it, by original path."""
    try:
        lines = Path(root, "var/lib/dpkg/diversions").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return {lines[n]: (lines[n + 1], lines[n + 2]) for n in range(0, len(lines) - 2, 3)}


def _conffiles(root: Path) -> dict[str, list[tuple[str, str]]]:
    """Path and MD5 of each file below /etc that a package brings, by package."""
    found: dict[str, list[tuple[str, str]]] = {}
    text = Path(root, "var/lib/dpkg/status").read_text(encoding="utf-8")
    for stanza in text.split("\n\n"):
        name = re.search(r"^Package: (\S+)$", stanza, re.MULTILINE)
        listed = re.search(r"^Conffiles:((?:\n .+)+)", stanza, re.MULTILINE)
        if name and listed:
            rows = (line.split() for line in listed[1].strip().splitlines())
            found[name[1]] = [(r[0], r[1]) for r in rows if len(r) == 2]  # others are obsolete
    return found


def answer(question: Mapping[str, list[str]], root: Path = Path("/")) -> dict[str, list[str]]:
    """The problems of a tree, by kind: `wheels`, `debs` and `bytecode`.

    `question` is described at the top of this file. `root` is where its Debian packages are.
    """
    claims: Claims = {}
    problems = []
    unread: set[str] = set()
    for site in question["sites"]:
        found, wrong = wheels(Path(site))
        problems += wrong
        for name in question["unchanged"]:
            unread.update(wheels(Path(site), name)[0])
        for line in question["changed"]:
            digest, size, name = line.split(" ", 2)
            path = os.path.normpath(Path(site, name))
            if path in found:
                found[path] = {Claim("sha256", digest, int(size))}
        for path, said in found.items():
            claims.setdefault(path, set()).update(said)
    packaged, unclaimed = debs(root, question["packages"])
    return {
        "wheels": problems + differences({p: c for p, c in claims.items() if p not in unread}),
        "debs": unclaimed + differences(packaged),
        "bytecode": [
            line for folder in question["bytecode"] for line in stale_bytecode(Path(folder), claims)
        ],
    }


if __name__ == "__main__":
    print(json.dumps(answer(json.loads(sys.argv[1]))))  # noqa: T201  its answer
