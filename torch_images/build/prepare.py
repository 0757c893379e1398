"""Locked images -> what their builds read, made ready: layers, bases, trees, compat packages."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from torch_images.build.bake import BuildOptions, Parts
from torch_images.build.plan import LockedImage, locked
from torch_images.config.lock_requests import compat_input, tools_inputs, variant_inputs
from torch_images.config.types import Base, Config
from torch_images.errors import LockError
from torch_images.fetch.apt import Resolver
from torch_images.fetch.bootstrap import ReadyBase
from torch_images.fetch.bootstrap import prepare as prepare_base
from torch_images.fetch.compat import go_without
from torch_images.fetch.compat import prepare as prepare_compat
from torch_images.fetch.toolchain import prepare as prepare_sources
from torch_images.fetch.toolchain import prepare_toolkit
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.layers.make import Progress, making, no_progress
from torch_images.layers.parent import ParentImages, Wanted
from torch_images.layers.plan import layer_plans
from torch_images.locks.debs import DebLock


def _say_unlocked(config: Config, images: Sequence[LockedImage], mode: str) -> None:
    """Say which images go without a compat package because none is locked.

    `mode` is one of COMPAT_MODES. Raises LockError where the package is required.
    """
    for cuda in dict.fromkeys(p.spec.cuda for p in images if not p.lock.compat):
        name = compat_input(config, cuda).name
        if mode != "off":
            problem = LockError(f"locks/{name}.txt does not exist")
            go_without(f"a compat package for CUDA {cuda.version}", problem, mode, name)


def prepare_inputs(
    config: Config,
    images: Sequence[LockedImage],
    workspace: Workspace,
    options: BuildOptions,
    *,
    engine: Engine,
    run: Runner,
    builds: Engine | None = None,
    progress: Progress = no_progress,
) -> tuple[tuple[LockedImage, ...], dict[str, Parts]]:
    """Make layers, bases, trees and compat packages ready, each once.

    Returns the images with the locks of what was really taken, in the same order, and the parts of
    each by its target. `builds` is the engine if it builds itself, and gets the layers then.
    Raises LockError, NetworkError, DiskError or EngineError, as fetching and packing do.
    """
    resolver = Resolver(
        root=workspace.root,
        network=workspace.network,
        run=run,
        engine=engine,
        mirrors=options.mirrors,
    )
    bases: dict[str, ReadyBase] = {}
    cache, network = workspace.cache, workspace.network
    # Asked for first: what cannot be had stops the build before gigabytes are packed.
    _say_unlocked(config, images, options.compat)
    newer = {p.lock.compat.name: p.lock.compat for p in images if p.lock.compat}
    compats = {
        name: prepare_compat(config.compat, lock, options.compat, cache=cache, network=network)
        for name, lock in newer.items()
    }
    sources = {
        p.target: prepare_sources(
            p.lock.sources, cache=cache, network=network, run=run, locked=options.locked
        )
        for p in images
        if p.lock.sources
    }
    toolkits = {
        p.target: prepare_toolkit(p.lock.toolkit, cache=cache, network=network)
        for p in images
        if p.lock.toolkit
    }

    def ready(base: Base, lock: DebLock, present: frozenset[str] | None = None) -> ReadyBase:
        if lock.digest not in bases:
            bases[lock.digest] = prepare_base(
                base,
                lock,
                cache=workspace.cache,
                resolver=resolver,
                locked=options.locked,
                fresh=options.no_cache,
                present=present,
            )
        return bases[lock.digest]

    def layout(base: Base, lock: DebLock) -> Path:
        made = ready(base, lock).layout
        assert made, f"{base.name} is not bootstrapped"
        return made

    plans = {p.target: layer_plans(config, p.spec, p.lock) for p in images}
    wanted = [[p for group in held.values() for p in group] for held in plans.values()]
    parents = ParentImages(cache, builds)
    with (
        progress() as show,
        making(wanted, cache, network, fresh=options.no_cache, show=show) as layers,
        ThreadPoolExecutor(1) as beside,
    ):
        starts = {p.lock.base.digest: p for p in images if not p.lock.base.image}
        layouts = {
            digest: beside.submit(layout, image.spec.base, image.lock.base)
            for digest, image in starts.items()
        }
        contexts = parents.contexts(
            {
                image.target: Wanted(
                    groups={n: [layers[p] for p in ps] for n, ps in plans[image.target].items()},
                    base=layouts.get(image.lock.base.digest),
                    compiles=bool(image.lock.sources),
                )
                for image in images
            }
        )
    locked_images: list[LockedImage] = []
    parts: dict[str, Parts] = {}
    for image in images:
        spec, extra, trees = image.spec, image.lock.extra_debs, sources.get(image.target)
        start = ready(spec.base, image.lock.base)
        compat = compats[image.lock.compat.name] if image.lock.compat else None
        there = frozenset(start.lock.versions())
        added: ReadyBase | None = None
        if extra and (item := variant_inputs(config, spec)[1]):
            added = ready(item.base or spec.base, extra, there)
        tools: ReadyBase | None = None
        if image.lock.tool_debs and (item := tools_inputs(config, spec)[1]):
            tools = ready(item.base or spec.base, image.lock.tool_debs, there)
        parts[image.target] = Parts(
            base=start,
            compat=compat,
            added=added,
            parents=contexts[image.target],
            sources=trees,
            tools=tools,
            toolkit=toolkits.get(image.target),
        )
        lock = replace(
            image.lock,
            base=start.lock,
            compat=image.lock.compat if compat else None,
            extra_debs=added.lock if added else None,
            tool_debs=tools.lock if tools else None,
            sources=trees.lock if trees else None,
        )
        locked_images.append(locked(spec, lock))
    return tuple(locked_images), parts
