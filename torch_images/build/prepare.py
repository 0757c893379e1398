"""Locked images -> the inputs of their builds: layers, bases, trees, compat packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from torch_images.build.bake import Parts
from torch_images.build.job import BuildOptions, Job
from torch_images.build.plan import LockedImage
from torch_images.config.image import ImageSpec
from torch_images.config.lock_requests import base_input
from torch_images.fetch.apt import Resolver
from torch_images.fetch.bootstrap import BaseMaker, ReadyBase
from torch_images.fetch.compat import prepare as prepare_compat
from torch_images.fetch.toolchain import archive_folder, sdist_folder
from torch_images.fetch.toolchain import prepare as prepare_sources
from torch_images.host.runner import Runner
from torch_images.host.workers import workers
from torch_images.host.workspace import Workspace
from torch_images.layers.make import making
from torch_images.layers.parent import ParentImages, ParentRequest
from torch_images.layers.plan import layer_plans
from torch_images.locks.debs import DebLock
from torch_images.locks.files import read
from torch_images.platforms import AMD64, native


def must_bootstrap(
    images: Sequence[LockedImage], workspace: Workspace, options: BuildOptions
) -> bool:
    """Whether a build of images makes a Debian base: whether the cache lacks one of theirs."""
    bases = base_maker(workspace, Runner(), options)
    own = all(image.spec.platform == native() for image in images)
    return not own or not all(bases.has(i.spec.base, i.lock.base) for i in images)


def base_maker(workspace: Workspace, run: Runner, options: BuildOptions) -> BaseMaker:
    """What makes the bases of builds with these options."""
    resolver = Resolver(
        root=workspace.root, network=workspace.network, run=run, mirrors=options.mirrors
    )
    return BaseMaker(cache=workspace.cache, resolver=resolver, fresh=options.no_cache)


class Preparer:
    """Prepares the inputs of images, each input once.

    Its methods raise LockError, NetworkError, DiskError or EngineError, as fetching does.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        space = job.workspace
        bases = base_maker(space, job.run, job.options)
        where: dict[str, Any] = {"cache": space.cache, "network": space.network}
        self.base = cache(bases.base)
        self.debs = cache(bases.debs)
        self.compat = cache(partial(prepare_compat, job.config.compat, run=job.run, **where))
        self.sources = cache(partial(prepare_sources, run=job.run, **where))
        self.sdists = cache(partial(sdist_folder, **where))
        self.toolkit = cache(partial(archive_folder, **where))

    def first(self, images: Sequence[LockedImage]) -> None:
        """Prepare inputs that may fail, before gigabytes are packed or a base is made."""
        for lock in (image.lock for image in images):
            if lock.compat:
                self.compat(lock.compat)
            if lock.sources and lock.trees:
                self.sources(lock.sources)
            if lock.sources and lock.sdists:
                self.sdists(lock.sources)
            if lock.toolkit:
                self.toolkit(lock.toolkit)

    def stack(self, images: Sequence[LockedImage]) -> dict[str, dict[str, str]]:
        """Make the layers, bases and parent images of images. Returns named contexts by target."""
        job, space = self._job, self._job.workspace
        plans = {p.target: layer_plans(job.config, p.spec, p.lock, small=p.small) for p in images}
        needed = [[p for group in groups.values() for p in group] for groups in plans.values()]
        parents = ParentImages(space.cache, None if job.remote else job.engine)
        fresh = job.options.no_cache
        with (
            job.shown.still(lambda: "preparing layers and bases"),
            making(needed, space.cache, space.network, fresh=fresh, say=job.shown.say) as layers,
            workers(1) as beside,
        ):

            def layout(image: LockedImage) -> Path:
                return self.base(image.spec.base, image.lock.base).layout

            starts = {image.lock.base.digest: image for image in images}
            layouts = {digest: beside.submit(layout, image) for digest, image in starts.items()}
            return parents.contexts(
                {
                    image.target: ParentRequest(
                        groups={
                            n: [layers[p] for p in ps] for n, ps in plans[image.target].items()
                        },
                        base=layouts[image.lock.base.digest],
                        compiles=bool(image.lock.trees),
                    )
                    for image in images
                }
            )

    def parts(self, image: LockedImage, parents: Mapping[str, str] | None = None) -> Parts:
        """The parts of an image; `parents` are the contexts with its wheels."""
        spec, lock = image.spec, image.lock
        base, contexts, note = self.base(spec.base, lock.base), dict(parents or {}), ""
        if spec.platform != AMD64:
            contexts["native"] = self._native(spec, lock.base, base).context
        if lock.compat:
            compat = self.compat(lock.compat)
            contexts["compat"], note = str(compat.folder), compat.note
        names = ("added", "own-debs", "tool-debs")
        packages = zip(names, (lock.extra_debs, lock.own_debs, lock.tool_debs), strict=True)
        contexts |= {name: str(self.debs(spec.base, debs)) for name, debs in packages if debs}
        if lock.toolkit:
            contexts["toolkit"] = str(self.toolkit(lock.toolkit))
        if lock.sources and lock.trees:
            ready = self.sources(lock.sources)
            contexts |= {f"{name}-tree": str(path.parent) for name, path in ready.trees.items()}
            contexts["archives"] = str(ready.archives)
        if lock.sources and lock.sdists:
            contexts["sdists"] = str(self.sdists(lock.sources))
        return Parts(base=base, contexts=contexts, compat_note=note)

    def _native(self, spec: ImageSpec, debs: DebLock, own: ReadyBase) -> ReadyBase:
        """The base whose Python compiles the bytecode of an image for linux/arm64.

        A base for the engine's own processor needs no emulator. It serves if its Python is the same
        as the image's, for another one may make other bytecode. Remote builders use the image's.
        """
        platform = self._job.engine.platform()
        if self._job.options.builder or spec.platform == platform:
            return own
        same = replace(spec, platform=platform)
        lock = read(DebLock, base_input(same).path(self._job.workspace.locks))
        python = f"python{spec.base.python}-minimal"  # the package with the interpreter
        if lock.versions().get(python) != debs.versions().get(python):
            return own
        return self.base(same.base, lock)


def prepare_inputs(job: Job, images: Sequence[LockedImage]) -> dict[str, Parts]:
    """Prepare layers, bases, trees and compat packages, each once. Returns the parts by target.

    An engine that is also the builder gets the layers. Raises LockError, NetworkError, DiskError or
    EngineError, as fetching and packing do.
    """
    preparer = Preparer(job)
    with job.shown.still(lambda: "fetching sources"):
        preparer.first(images)
    contexts = preparer.stack(images)
    with job.shown.still(lambda: "preparing bases"):
        return {image.target: preparer.parts(image, contexts[image.target]) for image in images}
