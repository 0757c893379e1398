"""Build the images without a current line in the ledger, one by one, within the disk's space.

Each line is written as soon as its image is verified, so an interrupted run continues where it
stopped. Images are removed once they are tested; layers that the next images share stay until the
disk is needed.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch_images.build import built
from torch_images.build.bake import BuildOptions
from torch_images.build.diskspace import disk_needed
from torch_images.build.plan import LockedImage, lock_image
from torch_images.config.image import ImageSpec
from torch_images.config.types import Config
from torch_images.errors import DiskError, LockError, NetworkError, TorchImagesError
from torch_images.host.cache import Part
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.jobs import Builder
from torch_images.layers.parent import PARENT_IMAGES
from torch_images.maintain import gc
from torch_images.publish import ledger
from torch_images.publish.pipeline import QUIET, Shown, make

_KEPT_LAYERS = 8_000_000_000  # bytes of layers that stay in the cache when space is freed


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result for one image: its new line of the ledger, or None and the error."""

    spec: ImageSpec
    line: ledger.Proof | None
    error: TorchImagesError | None = None


def to_build(
    config: Config, specs: Sequence[ImageSpec], workspace: Workspace, today: dt.date
) -> tuple[ImageSpec, ...]:
    """The images without a current line, except those that already failed to build today.

    Images with the same libraries follow each other.
    """
    proofs = ledger.read(workspace.root)
    states = ledger.states(config, specs, proofs, workspace.root, workspace.locks)
    tried = {name for name, p in proofs.items() if p.missing and p.date == today.isoformat()}
    left = [spec for spec in specs if not states[spec].tested and spec.id not in tried]
    return tuple(sorted(left, key=lambda s: (s.cuda.version, s.base.name, s.torch, s.source.name)))


def build_stale(
    config: Config,
    specs: Sequence[ImageSpec],
    workspace: Workspace,
    options: BuildOptions,
    *,
    engine: Engine,
    run: Runner,
    machine: Builder,
    today: dt.date,
    shown: Shown = QUIET,
) -> Iterator[Outcome]:
    """Build and verify images; yield the outcome of each once it is in the ledger.

    An image whose inputs are not available gets a line that says so, unless the ledger has a proof
    of it, even an old one. An image that fails its checks gets no line. A disk without space for an
    image ends the run, because all others would fail for the same reason.
    """
    before = set(engine.tags())
    for number, spec in enumerate(specs, 1):
        shown.say(f"{spec.id}: {number} of {len(specs)}")
        line: ledger.Proof | None = None
        problem: TorchImagesError | None = None
        try:
            image = lock_image(config, spec, workspace.locks)
            _make_room(config, image, workspace, before, engine=engine, say=shown.say)
            [made] = make(config, [image], workspace, options, engine=engine, run=run, shown=shown)
            line = ledger.proof(made, today.isoformat(), machine)
            _remove([*made.tags, image.candidate], engine, before)
        except (LockError, NetworkError) as error:
            problem, previous = error, ledger.read(workspace.root).get(spec.id)
            if previous is None or previous.missing:
                line = ledger.impossible(spec, error.message, today.isoformat(), machine)
        except TorchImagesError as error:
            problem = error
        if line:
            ledger.write(workspace.root, {**ledger.read(workspace.root), spec.id: line})
        yield Outcome(spec=spec, line=line, error=problem)
        if isinstance(problem, DiskError):
            shown.say(f"{len(specs) - number} more not tried; the next run goes on there")
            return


def _make_room(
    config: Config,
    image: LockedImage,
    workspace: Workspace,
    before: set[str],
    *,
    engine: Engine,
    say: Callable[[str], None],
) -> None:
    """If the disk is too small for an image, remove files that can be made again.

    These are parent images of earlier builds, and layers of the cache, the longest unused first.
    Images from before the run stay, and so does BuildKit's cache, which other projects use too.
    """
    root = engine.local_root()
    if root is None or shutil.disk_usage(root).free >= disk_needed(config, [image]):
        return
    parents = [
        tag
        for ours in engine.looked_into(built.ours(workspace.cache, engine))
        if not ours.in_use
        for tag in ours.tags
        if tag.startswith(f"{PARENT_IMAGES}:")
    ]
    _remove(parents, engine, before)
    layers = [i for i in gc.cache(workspace.cache) if i.name.startswith(f"{Part.LAYERS}/")]
    kept = gc.Limits(age=dt.timedelta(days=365), size=_KEPT_LAYERS)
    gone = list(gc.remove(gc.surplus(layers, kept, dt.datetime.now(dt.UTC)), engine))
    say(
        f"freed disk: {len(parents)} parent images, {len(gone)} layers; `invoke gc --cache` also "
        "removes the whole build cache, even of other projects"
    )


def _remove(tags: Sequence[str], engine: Engine, before: set[str]) -> None:
    """Remove tags that did not exist before the run."""
    for tag in dict.fromkeys(tags):
        if tag not in before and engine.digest(tag):
            engine.untag(tag)
