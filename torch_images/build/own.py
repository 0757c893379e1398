"""What torch-images itself adds to the image of a user's own project."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from torch_images.build.render import instructions, render
from torch_images.config.choose import choose
from torch_images.config.own import Own
from torch_images.config.types import Config
from torch_images.locks.image_lock import ImageLock, with_locked_extras

_LOCKED = ("lock", "wheels")  # parts of a context that follow from the locks


def parts(config: Config, own: Own, lock: ImageLock, root: Path) -> dict[str, str]:
    """SHA-256 of what decides bytes of the image besides its lock and the project, by part.

    The parts are those of the image without the project, and the steps that add the project.
    """
    plain = replace(lock, own_wheels=None, own_debs=None, own_build=None)
    spec = with_locked_extras(config, choose(config, **own.axes), lock)
    context = render(config, spec, plain, root)
    texts = defaultdict(list, {"layers": [line.encode() for line in context.beneath]})
    for file in context.files:
        part = file.path.split("/")[0]
        if part not in _LOCKED:
            data = instructions(file.data) if part == "Dockerfile" else file.data
            texts[part] += [file.path.encode(), data]
    for path in (root / "docker" / "own.j2", *sorted((root / "scripts/image/own").iterdir())):
        texts["own"] += [path.name.encode(), path.read_bytes()]
    return {
        part: hashlib.sha256(b"\0".join(data)).hexdigest() for part, data in sorted(texts.items())
    }
