"""A root file system as an OCI image layout: deterministic tar, blobs, manifest.

Equal trees give equal bytes, whatever the time, umask or process id of the run that made them.
Format: https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"

# The time of every file, in seconds since 1970: 1980-01-01, the first that a zip archive (a wheel)
# can hold. Not the lock's date: a new lock must not change layers whose content stays.
EPOCH = 315532800
_CREATED = datetime.fromtimestamp(EPOCH, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def normalise(
    source: Path, target: IO[bytes], *, keep: Callable[[str], bool] = lambda _: True
) -> None:
    """Rewrite a tar: members sorted by name, all times EPOCH, numeric owners, no extras.

    `keep` gets each path without leading "./" and decides whether it stays. mmdebstrap's own tar
    names a process id in its headers, so equal trees differ.
    """
    with (
        tarfile.open(source, "r:") as old,
        tarfile.open(fileobj=target, mode="w:", format=tarfile.PAX_FORMAT) as new,
    ):
        members = {_path(member): member for member in old if keep(_path(member))}
        for name in sorted(members):
            member = members[name]
            member.name = name
            if member.islnk():
                member.linkname = member.linkname.removeprefix("./")
            member.mtime = EPOCH
            member.uname = member.gname = ""
            member.pax_headers = _capabilities(member.pax_headers)
            new.addfile(member, old.extractfile(member) if member.isreg() else None)


def write_layout(
    folder: Path,
    layer: Path,
    *,
    history: str,
    env: Iterable[str] = (),
) -> str:
    """Make `folder` an OCI layout of one image with one layer; the manifest's digest.

    `layer` is a tar and is moved in.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    with layer.open("rb") as stream:
        layer_digest = hashlib.file_digest(stream, "sha256").hexdigest()
    layer_size = layer.stat().st_size
    os.replace(layer, blobs / layer_digest)
    config, manifest = _image_config(env), _manifest()
    config["rootfs"]["diff_ids"].append(f"sha256:{layer_digest}")
    config["history"].append({"created": _CREATED, "created_by": history})
    descriptor = {"mediaType": LAYER, "digest": f"sha256:{layer_digest}", "size": layer_size}
    manifest["layers"].append(descriptor)
    manifest["config"] = _blob(blobs, CONFIG, config)
    return _finish(folder, blobs, manifest)


def extend_layout(
    base: Path | None, layers: Iterable[tuple[str, Mapping[str, Any], Path]], folder: Path
) -> str:
    """Make `folder` a layout of the image in `base`, if any, with more layers; its digest.

    Each layer is what its history says, a descriptor with its diff_id, and the file that it is.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    config, manifest = _image_config(), _manifest()
    if base:
        held = base / "blobs" / "sha256"
        manifest = _document(held, layout_digest(base))
        config = _document(held, manifest["config"]["digest"])
        for descriptor in manifest["layers"]:
            name = descriptor["digest"].removeprefix("sha256:")
            _link(held / name, blobs / name)
    for title, layer, path in layers:
        descriptor = {key: layer[key] for key in ("mediaType", "digest", "size")}
        _link(path, blobs / descriptor["digest"].removeprefix("sha256:"))
        manifest["layers"].append(descriptor)
        config["rootfs"]["diff_ids"].append(layer["diff_id"])
        config["history"].append({"created": _CREATED, "created_by": title})
    manifest["config"] = _blob(blobs, CONFIG, config)
    return _finish(folder, blobs, manifest)


def layout_digest(folder: Path) -> str:
    """The digest of the one manifest of a layout that `write_layout` made."""
    index = json.loads((folder / "index.json").read_text())
    return str(index["manifests"][0]["digest"])


def _path(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./").rstrip("/") or "."


def _capabilities(headers: Mapping[str, str]) -> dict[str, str]:
    """Of the extended headers, file capabilities alone belong to the content."""
    return {k: v for k, v in headers.items() if k == "SCHILY.xattr.security.capability"}


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _image_config(env: Iterable[str] = ()) -> dict[str, Any]:
    """The configuration of an image without layers.

    Without "created": BuildKit before 0.24 would take it over as the time of whatever is built on a
    base that is a named context (moby/buildkit#6098).
    """
    return {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": list(env)},
        "rootfs": {"type": "layers", "diff_ids": []},
        "history": [],
    }


def _manifest() -> dict[str, Any]:
    """A manifest without layers."""
    return {"schemaVersion": 2, "mediaType": MANIFEST, "layers": []}


def _finish(folder: Path, blobs: Path, manifest: dict[str, Any]) -> str:
    """Store the manifest and make the folder a layout of it alone; its digest."""
    descriptor = _blob(blobs, MANIFEST, manifest)
    descriptor["annotations"] = {"org.opencontainers.image.ref.name": "base"}
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}
    (folder / "index.json").write_bytes(_json(index))
    return str(descriptor["digest"])


def _document(blobs: Path, digest: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((blobs / digest.removeprefix("sha256:")).read_bytes())
    return found


def _link(source: Path, target: Path) -> None:
    """The same file under another name; a copy where file systems differ or know no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _blob(blobs: Path, media_type: str, document: dict[str, Any]) -> dict[str, Any]:
    """Store a document; its descriptor."""
    data = _json(document)
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}
