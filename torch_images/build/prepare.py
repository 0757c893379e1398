"""Locked images -> the inputs of their builds: layers, bases, trees, compat packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from torch_images.build.bake import Parts
from torch_images.build.job import Job
from torch_images.build.plan import LockedImage
from torch_images.config.image import ImageSpec
from torch_images.config.lock_requests import base_input
from torch_images.config.types import Base
from torch_images.fetch.apt import Resolver
from torch_images.fetch.bootstrap import BaseMaker, ReadyBase
from torch_images.fetch.compat import ReadyCompat
from torch_images.fetch.compat import prepare as prepare_compat
from torch_images.fetch.toolchain import ReadySources, archive_folder
from torch_images.fetch.toolchain import prepare as prepare_sources
from torch_images.host.workers import workers
from torch_images.layers.make import making
from torch_images.layers.parent import ParentImages, ParentRequest
from torch_images.layers.plan import layer_plans
from torch_images.locks.debs import DebLock
from torch_images.locks.files import read
from torch_images.locks.sources import SourceLock
from torch_images.platforms import AMD64


class Preparer:
    """Prepares the inputs of images, each input once.

    Its methods raise LockError, NetworkError, DiskError or EngineError, as fetching does.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._options = job, job.options
        self._cache, self._network = job.workspace.cache, job.workspace.network
        resolver = Resolver(
            root=job.workspace.root,
            network=self._network,
            run=job.run,
            mirrors=self._options.mirrors,
        )
        self._bases = BaseMaker(
            cache=self._cache,
            resolver=resolver,
            fresh=self._options.no_cache,
        )
        self.base = cache(self._bases.base)
        self.debs = cache(self._bases.debs)
        self.compat = cache(self._compat)
        self.sources = cache(self._sources)
        self.toolkit = cache(self._toolkit)

    def first(self, images: Sequence[LockedImage]) -> None:
        """Prepare inputs that may fail, before gigabytes are packed or a base is made."""
        locks = [image.lock for image in images]
        for lock in locks:
            if lock.compat:
                self.compat(lock.compat)
        for lock in locks:
            if lock.sources:
                self.sources(lock.sources)
        for lock in locks:
            if lock.toolkit:
                self.toolkit(lock.toolkit)

    def layout(self, base: Base, lock: DebLock) -> Path:
        """The OCI layout of a base."""
        return self.base(base, lock).layout

    def stack(self, images: Sequence[LockedImage]) -> dict[str, dict[str, str]]:
        """Make the layers, bases and parent images of images. Returns named contexts by target."""
        job = self._job
        plans = {p.target: layer_plans(job.config, p.spec, p.lock, small=p.small) for p in images}
        needed = [[p for group in groups.values() for p in group] for groups in plans.values()]
        fresh = self._options.no_cache
        parents = ParentImages(self._cache, None if job.remote else job.engine)
        with (
            job.shown.layers() as show,
            making(needed, self._cache, self._network, fresh=fresh, show=show) as layers,
            workers(1) as beside,
        ):
            starts = {p.lock.base.digest: p for p in images}
            layouts = {
                digest: beside.submit(self.layout, image.spec.base, image.lock.base)
                for digest, image in starts.items()
            }
            return parents.contexts(
                {
                    image.target: ParentRequest(
                        groups={
                            n: [layers[p] for p in ps] for n, ps in plans[image.target].items()
                        },
                        base=layouts[image.lock.base.digest],
                        compiles=bool(image.lock.sources),
                    )
                    for image in images
                }
            )

    def parts(self, image: LockedImage, parents: Mapping[str, str] | None = None) -> Parts:
        """The parts of an image; `parents` are the contexts with its wheels."""
        spec, lock = image.spec, image.lock
        start = self.base(spec.base, lock.base)
        return Parts(
            native=self._native(spec, lock.base, start),
            base=start,
            compat=self.compat(lock.compat) if lock.compat else None,
            added=self.debs(spec.base, lock.extra_debs) if lock.extra_debs else None,
            parents=parents or {},
            sources=self.sources(lock.sources) if lock.sources else None,
            tools=self.debs(spec.base, lock.tool_debs) if lock.tool_debs else None,
            toolkit=self.toolkit(lock.toolkit) if lock.toolkit else None,
        )

    def _native(self, spec: ImageSpec, debs: DebLock, own: ReadyBase) -> ReadyBase | None:
        """The base whose Python compiles the bytecode of an image for linux/arm64.

        A base for the engine's own processor needs no emulator. It serves if its Python is the same
        as the image's, for another one may make other bytecode. Remote builders use the image's.
        """
        if spec.platform == AMD64:
            return None
        platform = self._job.engine.platform()
        if self._options.builder or spec.platform == platform:
            return own
        same = replace(spec, platform=platform)
        lock = read(DebLock, base_input(same).path(self._job.workspace.locks))
        python = f"python{spec.base.python}-minimal"  # the package with the interpreter
        if lock.versions().get(python) != debs.versions().get(python):
            return own
        return self.base(same.base, lock)

    def _compat(self, lock: DebLock) -> ReadyCompat:
        compat = self._job.config.compat
        return prepare_compat(compat, lock, cache=self._cache, network=self._network)

    def _sources(self, lock: SourceLock) -> ReadySources:
        run = self._job.run
        return prepare_sources(lock, cache=self._cache, network=self._network, run=run)

    def _toolkit(self, lock: SourceLock) -> Path:
        return archive_folder(lock, cache=self._cache, network=self._network)


def prepare_inputs(job: Job, images: Sequence[LockedImage]) -> dict[str, Parts]:
    """Prepare layers, bases, trees and compat packages, each once. Returns the parts by target.

    An engine that is also the builder gets the layers. Raises LockError, NetworkError, DiskError or
    EngineError, as fetching and packing do.
    """
    preparer = Preparer(job)
    preparer.first(images)
    contexts = preparer.stack(images)
    return {image.target: preparer.parts(image, contexts[image.target]) for image in images}
