"""Which images of an engine this project built: noted ones, and parents tagged by digest.

Labels prove nothing: FROM and `docker commit` copy them to images of the user, which this project
must neither count nor remove.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from torch_images.host.engine import Engine
from torch_images.host.image_info import ListedImage
from torch_images.layers.parent import parent_name

# In the cache, beside the parts that are pruned by age: a note lives as long as its image.
_FOLDER = "built"


def note(cache: Path, engine: Engine, digest: str) -> None:
    """Note that this project built an image, named by the digest of its manifest.

    Does nothing in a read-only cache; `gc` then does not find the image.
    """
    folder = _folder(cache, engine)
    with contextlib.suppress(PermissionError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / digest.removeprefix("sha256:")).touch()


def is_noted(cache: Path, engine: Engine, digest: str) -> bool:
    """Whether `note` has noted an image."""
    return digest in _noted(_folder(cache, engine))


def ours(cache: Path, engine: Engine) -> tuple[ListedImage, ...]:
    """The images of an engine that this project built, and their parent images.

    The tag of a parent image has its digest, so those made with another cache are recognised too.
    """
    noted = _noted(_folder(cache, engine))
    return tuple(i for i in engine.listed() if i.id in noted or parent_name(i.id) in i.tags)


def forget(cache: Path, engine: Engine) -> None:
    """Remove the notes of images that the engine no longer has."""
    folder = _folder(cache, engine)
    noted = _noted(folder)  # before listing: a build notes an image after the engine has it
    for digest in noted - {image.id for image in engine.listed()}:
        (folder / digest.removeprefix("sha256:")).unlink(missing_ok=True)


def _folder(cache: Path, engine: Engine) -> Path:
    """The notes of one engine. Each engine has its own folder, since it has its own images."""
    return cache / _FOLDER / hashlib.sha256(engine.id().encode()).hexdigest()[:16]


def _noted(folder: Path) -> frozenset[str]:
    return frozenset(f"sha256:{path.name}" for path in folder.glob("*"))
