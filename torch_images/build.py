"""Rendered contexts -> one `docker buildx bake` -> images in the engine, under candidate names.

A build never touches a final tag: that is given by `verify.py` to what passed. A killed build
leaves BuildKit's cache and at most a candidate, so it is safe to repeat.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from torch_images import bake, git, jsondoc, outputs
from torch_images.bake import BuildOptions, Parts
from torch_images.base import ReadyBase
from torch_images.base import prepare as prepare_base
from torch_images.builders import elsewhere
from torch_images.checkout import with_tree
from torch_images.compat import prepare as prepare_compat
from torch_images.config import Base, Config
from torch_images.debs import DebLock
from torch_images.diskspace import check_disk
from torch_images.engine import Engine
from torch_images.errors import EngineError, UsageError
from torch_images.failures import explain
from torch_images.foundation import Foundations, Wanted
from torch_images.inputs import tools_inputs, variant_inputs
from torch_images.layers import Bar, making, no_bar
from torch_images.planned import Planned, pair
from torch_images.render import LABEL_PREFIX, layer_plans, render, write_context
from torch_images.resolver import Resolver
from torch_images.runner import Runner
from torch_images.sources import LockedTree
from torch_images.toolchain import prepare as prepare_sources
from torch_images.toolchain import prepare_toolkit
from torch_images.tools import install_tools
from torch_images.workplace import Workplace


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A built image: its manifest's digest, size in the engine in bytes, and the wall time.

    `seconds` covers the whole bake, which may have built several images side by side.
    """

    planned: Planned
    digest: str
    size: int
    seconds: float


def with_torch(
    config: Config,
    planned: Planned,
    named: str,
    place: Workplace,
    run: Runner,
    *,
    obtain: bool = True,
) -> Planned:
    """The image with torch compiled from the tree that a user names instead.

    The tree is checked out into the cache if `obtain` is set: its lock does not say where on this
    host it was. Raises UsageError for an image that compiles nothing, and as `checkout.with_tree`
    does.
    """
    spec, sources = planned.spec, planned.lock.sources
    if not spec.source.torch or not sources:
        raise UsageError(
            f"source {spec.source.name} compiles no torch", "add --source fork to --torch-source"
        )
    cache, network = place.cache, place.network
    tree = with_tree(spec.source.torch, named, cache=cache, network=network, run=run, obtain=obtain)
    if tree == spec.source.torch:
        return planned
    ours = LockedTree(
        name="torch", version=tree.version, repository=tree.repository, commit=tree.commit
    )
    trees = tuple(sorted((ours, sources.tree("triton"))))
    lock = replace(planned.lock, sources=replace(sources, trees=trees, unlocked=True))
    return pair(config, spec, lock, place.root)


def build(
    config: Config,
    planned: Sequence[Planned],
    place: Workplace,
    options: BuildOptions,
    *,
    engine: Engine,
    run: Runner,
    bar: Bar = no_bar,
) -> tuple[BuildResult, ...]:
    """Build images side by side and load them into the engine under their candidate tags.

    `bar` shows how many bytes of wheels are done, of how many.

    Raises DiskError, NetworkError, LockError (a wheel is not the locked one), EngineError or
    BuildError; nothing is tagged then.
    """
    load = elsewhere(options.builder, run)
    if not options.skip_disk_check:
        held = engine.label_values(f"{LABEL_PREFIX}.lock")
        # A build may go without the compat package that is locked.
        locks = {p.target: (p.lock, replace(p.lock, compat=None)) for p in planned}
        made = [t for t, both in locks.items() if held & {f"sha256:{x.digest}" for x in both}]
        check_disk(engine.local_root(), [p for p in planned if p.target not in made])
    started = time.monotonic()
    # A build from nothing must not meet what earlier builds left in the compile cache.
    compiles = any(image.lock.sources for image in planned)
    namespace = _namespace() if options.no_cache and compiles else ""
    builds = None if load else engine
    ready, parts = settle(
        config, planned, place, options, engine=engine, builds=builds, run=run, bar=bar
    )
    command = prepare(config, ready, parts, place, options, run=run, namespace=namespace)
    with tempfile.TemporaryDirectory(dir=place.output, prefix=".bake-") as scratch:
        metadata = Path(scratch, "metadata.json")
        command += ["--metadata-file", str(metadata)]
        for image in ready if load else ():
            archive = Path(scratch, f"{image.target}.tar")
            command += ["--set", f"{image.target}.output={bake.output(image, archive)}"]
        _bake(command, place, options, namespace=namespace, run=run)
        digests = _digests(metadata, [image.target for image in ready])
        for image in ready if load else ():
            run.run(["docker", "load", "--input", str(Path(scratch, f"{image.target}.tar"))])
    seconds = time.monotonic() - started
    results = []
    for image in ready:
        info = engine.inspect(image.candidate)
        digest = digests[image.target]
        results.append(BuildResult(planned=image, digest=digest, size=info.size, seconds=seconds))
    return tuple(results)


def _digests(metadata: Path, targets: Sequence[str]) -> dict[str, str]:
    """The digest of each image, from what buildx wrote of a build. Raises EngineError."""
    try:
        found = jsondoc.parse(metadata.read_bytes())
        return {t: jsondoc.member(found, t, "containerimage.digest", kind=str) for t in targets}
    except (OSError, jsondoc.MalformedError) as error:
        raise EngineError(f"buildx does not say what it built: {error}") from None


def check_compiles(planned: Planned) -> None:
    """Raise UsageError for an image that compiles nothing."""
    if not planned.lock.sources:
        raise UsageError(
            f"source {planned.spec.source.name} compiles nothing", "its wheels are published"
        )


def export(
    config: Config,
    planned: Planned,
    place: Workplace,
    options: BuildOptions,
    folder: Path,
    *,
    engine: Engine,
    run: Runner,
    bar: Bar = no_bar,
) -> tuple[Path, ...]:
    """Compile the wheels of an image and put them into a folder.

    Raises as `build` does, and UsageError for a folder with anything but such wheels in it.
    """
    named, folder = folder, outputs.claim(folder)
    builds = None if elsewhere(options.builder, run) else engine
    if not options.skip_disk_check:
        check_disk(engine.local_root(), [planned])
    namespace = _namespace() if options.no_cache else ""
    ready, parts = settle(
        config, [planned], place, options, engine=engine, builds=builds, run=run, bar=bar
    )
    command = prepare(config, ready, parts, place, options, run=run, namespace=namespace)
    with outputs.saying(named):
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=folder.parent, prefix=".torch-images-")
    with scratch:
        made = Path(scratch.name, "wheels")
        target = ready[0].target
        command += ["--set", f"{target}.target=compiled"]
        command += ["--set", f"{target}.output=type=local,{bake.destination(made)}"]
        _bake(command, place, options, namespace=namespace, run=run)
        wheels = sorted(made.glob("*.whl"))
        outputs.claim(named)  # again: it took hours
        with outputs.saying(named):
            folder.mkdir(exist_ok=True)
            outputs.mark(folder, made)
            for wheel in wheels:
                os.replace(wheel, folder / wheel.name)
    return tuple(folder / wheel.name for wheel in wheels)


def settle(
    config: Config,
    planned: Sequence[Planned],
    place: Workplace,
    options: BuildOptions,
    *,
    engine: Engine,
    run: Runner,
    builds: Engine | None = None,
    bar: Bar = no_bar,
) -> tuple[tuple[Planned, ...], dict[str, Parts]]:
    """Make layers, bases and compat packages ready, each once. The images with the locks of those.

    `builds` is the engine if it builds itself, and gets the layers then. Raises as `layers.making`,
    `Foundations`, `base.prepare` and `compat.prepare` do.
    """
    resolver = Resolver(
        root=place.root, network=place.network, run=run, engine=engine, mirrors=options.mirrors
    )
    bases: dict[str, ReadyBase] = {}
    cache, network, locked = place.cache, place.network, options.locked
    # Asked for first: what cannot be had stops the build before gigabytes are packed.
    newer = {p.lock.compat.name: p.lock.compat for p in planned if p.lock.compat}
    compats = {
        name: prepare_compat(config.compat, lock, options.compat, cache=cache, network=network)
        for name, lock in newer.items()
    }
    sources = {
        p.target: prepare_sources(
            p.lock.sources, cache=cache, network=network, run=run, locked=locked
        )
        for p in planned
        if p.lock.sources
    }
    toolkits = {
        p.target: prepare_toolkit(p.lock.toolkit, cache=cache, network=network)
        for p in planned
        if p.lock.toolkit
    }

    def ready(base: Base, lock: DebLock, present: frozenset[str] | None = None) -> ReadyBase:
        if lock.digest not in bases:
            bases[lock.digest] = prepare_base(
                base,
                lock,
                cache=place.cache,
                resolver=resolver,
                locked=locked,
                fresh=options.no_cache,
                present=present,
            )
        return bases[lock.digest]

    def layout(base: Base, lock: DebLock) -> Path:
        made = ready(base, lock).layout
        assert made, f"{base.name} is not bootstrapped"
        return made

    plans = {p.target: layer_plans(config, p.spec, p.lock) for p in planned}
    wanted = [[p for group in held.values() for p in group] for held in plans.values()]
    foundations = Foundations(cache, builds)
    with (
        bar() as show,
        making(wanted, cache, network, fresh=options.no_cache, show=show) as layers,
        ThreadPoolExecutor(1) as beside,
    ):
        starts = {p.lock.base.digest: p for p in planned if not p.lock.base.image}
        layouts = {
            digest: beside.submit(layout, image.spec.base, image.lock.base)
            for digest, image in starts.items()
        }
        contexts = foundations.contexts(
            {
                image.target: Wanted(
                    groups={n: [layers[p] for p in ps] for n, ps in plans[image.target].items()},
                    base=layouts.get(image.lock.base.digest),
                    compiles=bool(image.lock.sources),
                )
                for image in planned
            }
        )
    found, parts = [], {}
    for image in planned:
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
            foundations=contexts[image.target],
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
        found.append(pair(config, spec, lock, place.root))
    return tuple(found), parts


def prepare(
    config: Config,
    planned: Sequence[Planned],
    parts: Mapping[str, Parts],
    place: Workplace,
    options: BuildOptions,
    *,
    run: Runner,
    namespace: str = "",
) -> list[str]:
    """Write all that the bake reads - contexts and bake file - and return its command."""
    tools = {
        name: str(install_tools(f"tools-{lock}", place, run))
        for name, lock in (("tools", "build"), ("sbom", "sbom"))
    }
    for image in planned:
        shared = bool(place.network.compile_cache)
        context = render(config, image.spec, image.lock, place.root, shared_cache=shared)
        write_context(context, place.output / image.spec.id)
    commit = revision(place.root, run)
    document = bake.bake_file(
        planned, place, parts, tools, commit, options=options, namespace=namespace
    )
    file = place.output / "docker-bake.json"
    file.write_text(json.dumps(document, indent=2) + "\n")
    if not place.network.on_loopback:
        return bake.bake_command((file,), options)
    host = place.output / "docker-network.yaml"
    host.write_text(json.dumps(bake.host_network(planned), indent=2) + "\n")
    command = bake.bake_command((host, file), options)
    if "--allow" in run.run(["docker", "buildx", "bake", "--help"]).output:
        # Since buildx 0.17 the host's network must be granted; older ones lack the word.
        command.append("--allow=network.host")
    return command


def revision(root: Path, run: Runner) -> str | None:
    """The commit that `root` is at, with "-dirty" when files differ from it; None without git."""
    if not (root / ".git").exists() or not shutil.which("git"):
        return None
    env = git.environment()
    head = run.run(["git", "-C", str(root), "rev-parse", "--verify", "HEAD"], env=env, check=False)
    if head.code:
        return None
    status = run.run(["git", "-C", str(root), "status", "--porcelain"], env=env, check=False)
    return head.output.strip() + ("-dirty" if status.output.strip() else "")


def _namespace() -> str:
    """A name for cache mounts that no other build has."""
    return f"torch-images-{secrets.token_hex(8)}"


def _bake(
    command: Sequence[str],
    place: Workplace,
    options: BuildOptions,
    *,
    namespace: str,
    run: Runner,
) -> None:
    """Run a bake, with what it keeps in a namespace of its own removed; raise why it failed."""
    done = run.stream(command, env=bake.environment(place.network, options))
    if namespace:
        _drop_mounts(namespace, options, run)
    if done.code:
        raise explain(done.output)


def _drop_mounts(namespace: str, options: BuildOptions, run: Runner) -> None:
    """Remove the cache mounts of a build from nothing, which no later build would use."""
    builder = [f"--builder={options.builder}"] if options.builder else []
    records = run.run(["docker", "buildx", "du", "--verbose", *builder], check=False).output
    for record in records.split("\n\n"):
        # buildx knows filters for equality only, and the namespace is a part of the description.
        found = re.search(r"^ID:\s+(\S+)", record, re.MULTILINE)
        if found and namespace in record:
            prune = ["docker", "buildx", "prune", "--force", "--all", f"--filter=id={found[1]}"]
            run.run([*prune, *builder], check=False)
