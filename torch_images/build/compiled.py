"""Compiled wheels in the cache, by what decides their bytes.

BuildKit keeps the steps that compile, but cannot be relied on. Once any step is removed, Docker
26.1.5 and 28.5.2 find no step on a loaded image again, though `docker buildx du` still lists them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from packaging.utils import parse_wheel_filename

from torch_images.build.job import BuildOptions
from torch_images.build.plan import ImagePlan, LockedImage
from torch_images.build.render import text_files
from torch_images.host.cache import Part, used

# Files of the context that steps before the stage with the compiled wheels read.
_READ = ("build/", "devel/", "lock/", "source/", "wheels/source.txt")
_STAGE = "FROM scratch AS compiled\n"


def keeps(image: LockedImage, options: BuildOptions) -> bool:
    """Whether a build of an image takes its compiled wheels from the cache, and puts them there.

    Not where another machine needs the steps themselves, nor for a tree of the user's own.
    """
    shared = options.share or options.cache_from or options.cache_to
    return bool(image.lock.sources) and not (image.lock.unlocked or options.no_cache or shared)


def folder_of(image: ImagePlan, cache: Path) -> Path:
    """The folder of an image's compiled wheels, whether it is there or not."""
    context = image.context
    steps, stage, _ = context.dockerfile.partition(_STAGE)
    assert stage
    files = [file for file in context.files if file.path.startswith(_READ)]
    decisive = replace(
        context,
        files=(*text_files({"Dockerfile": steps}), *files),
        beneath=(image.spec.platform.name, *context.beneath),
        labels=(),
    )
    return cache / Part.COMPILED / decisive.digest


def contexts(image: ImagePlan, cache: Path) -> dict[str, str]:
    """Named contexts in place of the stages that compile; {} if the cache lacks the wheels."""
    folder = folder_of(image, cache)
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
