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

from torch_images import jsondoc
from torch_images.build import bake
from torch_images.build.bake import BuildOptions, Parts
from torch_images.build.diskspace import check_disk
from torch_images.build.plan import ImagePlan, pair
from torch_images.build.render import LABEL_PREFIX, layer_plans, render, write_context
from torch_images.config.lock_requests import tools_inputs, variant_inputs
from torch_images.config.types import Base, Config
from torch_images.errors import EngineError, UsageError
from torch_images.fetch.apt import Resolver
from torch_images.fetch.bootstrap import ReadyBase
from torch_images.fetch.bootstrap import prepare as prepare_base
from torch_images.fetch.checkout import with_tree
from torch_images.fetch.compat import prepare as prepare_compat
from torch_images.fetch.toolchain import prepare as prepare_sources
from torch_images.fetch.toolchain import prepare_toolkit
from torch_images.fetch.tools import install_tools
from torch_images.host import git, outputs
from torch_images.host.buildx import is_remote
from torch_images.host.diagnose import explain
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.layers.make import Progress, making, no_progress
from torch_images.layers.parent import ParentImages, Wanted
from torch_images.locks.debs import DebLock
from torch_images.locks.sources import LockedTree


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A built image: its manifest's digest, size in the engine in bytes, and the wall time.

    `seconds` covers the whole bake, which may have built several images side by side.
    """

    planned: ImagePlan
    digest: str
    size: int
    seconds: float


def with_torch(
    config: Config,
    planned: ImagePlan,
    named: str,
    workspace: Workspace,
    run: Runner,
    *,
    obtain: bool = True,
) -> ImagePlan:
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
    cache, network = workspace.cache, workspace.network
    tree = with_tree(spec.source.torch, named, cache=cache, network=network, run=run, obtain=obtain)
    if tree == spec.source.torch:
        return planned
    ours = LockedTree(
        name="torch", version=tree.version, repository=tree.repository, commit=tree.commit
    )
    trees = tuple(sorted((ours, sources.tree("triton"))))
    lock = replace(planned.lock, sources=replace(sources, trees=trees, unlocked=True))
    return pair(config, spec, lock, workspace.root)


def build(
    config: Config,
    planned: Sequence[ImagePlan],
    workspace: Workspace,
    options: BuildOptions,
    *,
    engine: Engine,
    run: Runner,
    progress: Progress = no_progress,
) -> tuple[BuildResult, ...]:
    """Build images side by side and load them into the engine under their candidate tags.

    `progress` shows how many bytes of wheels are done, of how many.

    Raises DiskError, NetworkError, LockError (a wheel is not the locked one), EngineError or
    BuildError; nothing is tagged then.
    """
    load = is_remote(options.builder, run)
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
    ready, parts = prepare_inputs(
        config,
        planned,
        workspace,
        options,
        engine=engine,
        builds=builds,
        run=run,
        progress=progress,
    )
    command = prepare(config, ready, parts, workspace, options, run=run, namespace=namespace)
    with tempfile.TemporaryDirectory(dir=workspace.output, prefix=".bake-") as scratch:
        metadata = Path(scratch, "metadata.json")
        command += ["--metadata-file", str(metadata)]
        for image in ready if load else ():
            archive = Path(scratch, f"{image.target}.tar")
            command += ["--set", f"{image.target}.output={bake.output(image, archive)}"]
        _bake(command, workspace, options, namespace=namespace, run=run)
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


def check_compiles(planned: ImagePlan) -> None:
    """Raise UsageError for an image that compiles nothing."""
    if not planned.lock.sources:
        raise UsageError(
            f"source {planned.spec.source.name} compiles nothing", "its wheels are published"
        )


def export(
    config: Config,
    planned: ImagePlan,
    workspace: Workspace,
    options: BuildOptions,
    folder: Path,
    *,
    engine: Engine,
    run: Runner,
    progress: Progress = no_progress,
) -> tuple[Path, ...]:
    """Compile the wheels of an image and put them into a folder.

    Raises as `build` does, and UsageError for a folder with anything but such wheels in it.
    """
    named, folder = folder, outputs.claim(folder)
    builds = None if is_remote(options.builder, run) else engine
    if not options.skip_disk_check:
        check_disk(engine.local_root(), [planned])
    namespace = _namespace() if options.no_cache else ""
    ready, parts = prepare_inputs(
        config,
        [planned],
        workspace,
        options,
        engine=engine,
        builds=builds,
        run=run,
        progress=progress,
    )
    command = prepare(config, ready, parts, workspace, options, run=run, namespace=namespace)
    with outputs.saying(named):
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=folder.parent, prefix=".torch-images-")
    with scratch:
        made = Path(scratch.name, "wheels")
        target = ready[0].target
        command += ["--set", f"{target}.target=compiled"]
        command += ["--set", f"{target}.output=type=local,{bake.destination(made)}"]
        _bake(command, workspace, options, namespace=namespace, run=run)
        wheels = sorted(made.glob("*.whl"))
        outputs.claim(named)  # again: it took hours
        with outputs.saying(named):
            folder.mkdir(exist_ok=True)
            outputs.mark(folder, made)
            for wheel in wheels:
                os.replace(wheel, folder / wheel.name)
    return tuple(folder / wheel.name for wheel in wheels)


def prepare_inputs(
    config: Config,
    planned: Sequence[ImagePlan],
    workspace: Workspace,
    options: BuildOptions,
    *,
    engine: Engine,
    run: Runner,
    builds: Engine | None = None,
    progress: Progress = no_progress,
) -> tuple[tuple[ImagePlan, ...], dict[str, Parts]]:
    """Make layers, bases and compat packages ready, each once. The images with the locks of those.

    `builds` is the engine if it builds itself, and gets the layers then. Raises as `layers.making`,
    `ParentImages`, `base.prepare` and `compat.prepare` do.
    """
    resolver = Resolver(
        root=workspace.root,
        network=workspace.network,
        run=run,
        engine=engine,
        mirrors=options.mirrors,
    )
    bases: dict[str, ReadyBase] = {}
    cache, network, locked = workspace.cache, workspace.network, options.locked
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
                cache=workspace.cache,
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
    parents = ParentImages(cache, builds)
    with (
        progress() as show,
        making(wanted, cache, network, fresh=options.no_cache, show=show) as layers,
        ThreadPoolExecutor(1) as beside,
    ):
        starts = {p.lock.base.digest: p for p in planned if not p.lock.base.image}
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
        found.append(pair(config, spec, lock, workspace.root))
    return tuple(found), parts


def prepare(
    config: Config,
    planned: Sequence[ImagePlan],
    parts: Mapping[str, Parts],
    workspace: Workspace,
    options: BuildOptions,
    *,
    run: Runner,
    namespace: str = "",
) -> list[str]:
    """Write all that the bake reads - contexts and bake file - and return its command."""
    tools = {
        name: str(install_tools(f"tools-{lock}", workspace, run))
        for name, lock in (("tools", "build"), ("sbom", "sbom"))
    }
    for image in planned:
        shared = bool(workspace.network.compile_cache)
        context = render(config, image.spec, image.lock, workspace.root, shared_cache=shared)
        write_context(context, workspace.output / image.spec.id)
    commit = revision(workspace.root, run)
    document = bake.bake_file(
        planned, workspace, parts, tools, commit, options=options, namespace=namespace
    )
    file = workspace.output / "docker-bake.json"
    file.write_text(json.dumps(document, indent=2) + "\n")
    if not workspace.network.on_loopback:
        return bake.bake_command((file,), options)
    host = workspace.output / "docker-network.yaml"
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
    workspace: Workspace,
    options: BuildOptions,
    *,
    namespace: str,
    run: Runner,
) -> None:
    """Run a bake, with what it keeps in a namespace of its own removed; raise why it failed."""
    done = run.stream(command, env=bake.environment(workspace.network, options))
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
