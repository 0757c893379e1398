"""Stand-in wheels, and the pages of a package index that has them."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_images.locks.wheels import LockedWheel


@dataclass(frozen=True)
class StandIn:
    """A wheel made here: what the lock says of it, and the file."""

    locked: LockedWheel
    data: bytes


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    more: Mapping[str, bytes] | None = None,
    *,
    requires: Sequence[str] = (),
) -> StandIn:
    """A wheel with one module, requirements, and more files that are programs."""
    module = name.replace("-", "_")
    filename, info = f"{module}-{version}-py3-none-any.whl", f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {word}\n" for word in requires)
    files = {
        f"{module}.py": b"ANSWER = 42\n",
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    files |= more or {}
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        quoted = f'"{path}"' if "," in path else path
        lines.append(f"{quoted},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    with zipfile.ZipFile(folder / filename, "w") as archive:
        for path, data in files.items():
            member = zipfile.ZipInfo(path)
            member.external_attr = (0o100755 if path in (more or {}) else 0o100644) << 16
            archive.writestr(member, data)
    data = (folder / filename).read_bytes()
    locked = LockedWheel(
        name=name,
        version=version,
        filename=filename,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    return StandIn(locked, data)


def index(wheels: Sequence[StandIn]) -> dict[str, bytes]:
    """The pages and files of a simple index (PEP 503), by path."""
    files: dict[str, bytes] = {}
    for wheel in wheels:
        name, page = wheel.locked.filename, f"/simple/{wheel.locked.name}/"
        link = f'<a href="{name}#sha256={wheel.locked.sha256}">{name}</a>\n'
        files[page] = files.get(page, b"") + link.encode()
        files[f"{page}{name}"] = wheel.data
    return files
