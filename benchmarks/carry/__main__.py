"""Carry an image to a machine without a network that has the same wheels installed.

    python -m benchmarks.carry list SITE > there.json        on that machine
    python -m benchmarks.carry pack IMAGE --there there.json --wheels FOLDER --output FOLDER
    python -m benchmarks.carry unpack FOLDER --site SITE --output OCI        on that machine

SITE is the folder with that machine's Python packages. `--wheels` has the wheels of them that the
image has for another Python, such as torch's. What `pack` writes are the layers that wheels did not
make, and of the others only what is not there. `unpack` packs them with this project's own packer
and compares each digest, so the engine gets the very image: `tar -C OCI -c . | docker load`.
`docs/gpu.md` says what ran on a GPU this way.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import zstandard

from benchmarks.carry.recipe import Installed, Part, cut, installed, join
from torch_images.errors import TorchImagesError
from torch_images.oci.layout import Compressed, Effort

PLAN = "plan.json"
BLOBS = "blobs/sha256"
SITE = re.compile(r"opt/venv/lib/python3\.[0-9]+/site-packages/")


def references(folder: Path) -> Callable[[str], bytes | None]:
    """The content of a file by its path, from the wheels in a folder."""
    wheels = [zipfile.ZipFile(path) for path in sorted(folder.glob("*.whl"))]
    places = {name: wheel for wheel in wheels for name in wheel.namelist()}
    return lambda path: places[path].read(path) if path in places else None


def pack(image: str, there: Path, wheels: Path, output: Path) -> None:
    """Write what has to travel for an image to `output`, a new folder."""
    known = {path: Installed(*facts) for path, facts in json.loads(there.read_text()).items()}
    reference = references(wheels)
    (output / BLOBS).mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=output) as scratch:
        place = Path(scratch)
        subprocess.run(["docker", "save", image, "--output", place / "image.tar"], check=True)
        with tarfile.open(place / "image.tar") as archive:
            archive.extractall(place, filter="data")
        index = json.loads((place / "index.json").read_text())
        [entry] = index["manifests"]
        manifest = json.loads((place / BLOBS / name(entry["digest"])).read_bytes())
        whole = [entry["digest"], manifest["config"]["digest"]]
        recipes = []
        for layer in manifest["layers"]:
            recipe = shortened(place, layer["digest"], known, reference, output)
            if recipe is None:
                whole.append(layer["digest"])
            else:
                recipes.append(recipe)
        for digest in whole:
            (place / BLOBS / name(digest)).rename(output / BLOBS / name(digest))
    (output / PLAN).write_text(json.dumps({"index": index, "layers": recipes}))
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    print(f"{len(recipes)} layers are made there, {len(whole)} blobs travel; {size / 1e6:.0f} MB")


def shortened(
    place: Path,
    digest: str,
    known: Mapping[str, Installed],
    reference: Callable[[str], bytes | None],
    output: Path,
) -> dict[str, Any] | None:
    """How a layer in `place` is made there; None if that is not shorter, or not ours to make."""
    tar, trial = place / "layer.tar", place / "trial"
    with (place / BLOBS / name(digest)).open("rb") as blob, tar.open("wb") as plain:
        zstandard.ZstdDecompressor(max_window_size=2**31).copy_stream(blob, plain)
    changes: dict[str, bytes] = {}
    with tarfile.open(tar) as members:
        found = (SITE.match(member.name.removeprefix("./")) for member in members)
        site = next((match[0] for match in found if match), "")
    if not site:
        return None
    parts, raw = [], bytearray()
    for part, data in cut(tar, site, known, reference, changes.__setitem__):
        parts.append(asdict(part))
        raw += data
    if len(raw) > tar.stat().st_size / 2:
        return None
    whole = tar.read_bytes()
    for base in (False, True):
        if packed([whole], trial, base=base) == digest:
            break
    else:
        return None
    for made, change in changes.items():
        (output / made).write_bytes(change)
    (output / f"{name(digest)}.raw").write_bytes(zstandard.compress(bytes(raw), 12))
    return {"digest": digest, "base": base, "parts": parts}


def unpack(folder: Path, site: Path, output: Path) -> None:
    """Make the OCI layout of the image in `output`. Raises ValueError for any other layer."""
    plan = json.loads((folder / PLAN).read_text())
    (output / BLOBS).mkdir(parents=True)
    with ProcessPoolExecutor() as pool:
        work = [pool.submit(remade, folder, layer, site, output) for layer in plan["layers"]]
        for done in work:
            print(done.result())
    for blob in (folder / BLOBS).iterdir():
        data = blob.read_bytes()
        if hashlib.sha256(data).hexdigest() != blob.name:
            raise ValueError(f"{blob.name} was damaged on its way")
        (output / BLOBS / blob.name).write_bytes(data)
    (output / "index.json").write_text(json.dumps(plan["index"]))
    (output / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def remade(folder: Path, layer: dict[str, Any], site: Path, output: Path) -> str:
    """Pack one layer again, and say so. Raises ValueError if its digest is another one.

    It gets its name only then: whoever finds a blob under a digest may trust it.
    """
    digest = layer["digest"]
    raw = zstandard.decompress((folder / f"{name(digest)}.raw").read_bytes())
    parts = [Part(**part) for part in layer["parts"]]
    tar = join(parts, raw, site, lambda made: (folder / made).read_bytes())
    made = output / f"{name(digest)}.made"
    found = packed(tar, made, base=layer["base"])
    if found != digest:
        made.unlink()
        raise ValueError(f"a layer came out as {found}, not as {digest}")
    made.rename(output / BLOBS / name(digest))
    return f"{digest} was made here"


def packed(tar: Iterable[bytes], target: Path, *, base: bool) -> str:
    """Pack a tar as this project packs layers, to `target`. Returns the digest."""
    with target.open("wb") as stream:
        sink = Compressed(stream, 2, effort=Effort.BASE if base else Effort.QUICK)
        for chunk in tar:
            sink.write(chunk)
        return sink.finish().digest


def name(digest: str) -> str:
    """The name of a blob's file."""
    return digest.removeprefix("sha256:")


def main() -> None:
    """List, pack or unpack."""
    parser = argparse.ArgumentParser(description="Carry an image to a machine without a network.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    listing = verbs.add_parser("list")
    listing.add_argument("site", type=Path)
    packing = verbs.add_parser("pack")
    packing.add_argument("image")
    packing.add_argument("--there", type=Path, required=True)
    packing.add_argument("--wheels", type=Path, required=True)
    packing.add_argument("--output", type=Path, required=True)
    making = verbs.add_parser("unpack")
    making.add_argument("folder", type=Path)
    making.add_argument("--site", type=Path, required=True)
    making.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    if options.verb != "list" and options.output.exists():
        raise SystemExit(f"{options.output} is there already; name a new folder with --output")
    try:
        if options.verb == "list":
            facts = {path: (f.size, f.sha256) for path, f in installed(options.site).items()}
            print(json.dumps(facts))
        elif options.verb == "pack":
            pack(options.image, options.there, options.wheels, options.output)
        else:
            unpack(options.folder, options.site, options.output)
    except (OSError, ValueError, TorchImagesError) as error:
        raise SystemExit(f"it cannot be carried: {error}") from None


if __name__ == "__main__":
    main()
