"""Compiled wheels in the cache, by what decides their bytes.

BuildKit would keep the steps that compile, but not safely: once any step is removed, Docker 26.1.5
and 28.5.2 no longer find the steps on a loaded image, though `docker buildx du` lists them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from packaging.utils import parse_wheel_filename

from torch_images.build.job import BuildOptions
from torch_images.build.plan import ImagePlan, LockedImage
from torch_images.build.render import instructions
from torch_images.host.cache import Part, used

# Files of the context that steps before the stage with the compiled wheels read.
_READ = ("build/", "devel/", "lock/", "source/", "wheels/source.txt")
_STAGE = b"FROM scratch AS compiled\n"


def keeps(image: LockedImage, options: BuildOptions) -> bool:
    """Whether a build of an image takes its compiled wheels from the cache, and puts them there.

    Not where another machine needs the steps themselves, nor for a tree of the user's own.
    """
    shared = options.share or options.cache_from or options.cache_to
    return bool(image.lock.sources) and not (image.lock.unlocked or options.no_cache or shared)


def kept(image: ImagePlan, cache: Path) -> Path:
    """The folder of an image's compiled wheels, whether it is there or not."""
    steps, stage, _ = instructions(image.context.dockerfile.encode()).partition(_STAGE)
    assert stage
    digest = hashlib.sha256(
        json.dumps([image.spec.platform.name, image.context.beneath]).encode() + steps
    )
    for file in image.context.files:
        if file.path.startswith(_READ):
            digest.update(f"{file.path}\0{file.executable}\0{len(file.data)}\0".encode())
            digest.update(file.data)
    return cache / Part.COMPILED / digest.hexdigest()


def contexts(image: ImagePlan, cache: Path) -> dict[str, str]:
    """Named contexts in place of the stages that compile; {} if the cache lacks the wheels."""
    folder = kept(image, cache)
    if not folder.exists():
        return {}
    used(folder)
    return {f"compile-{path.name}": str(folder) for path in (folder / "wheels").iterdir()}


def arrange(folder: Path) -> None:
    """Put wheels where the stages that compile have them: /wheels/NAME, with one wheel in each."""
    for wheel in sorted(folder.glob("*.whl")):
        place = folder / "wheels" / parse_wheel_filename(wheel.name)[0]
        place.mkdir(parents=True)
        wheel.rename(place / wheel.name)
