"""Rendered contexts -> one `docker buildx bake` -> images in the engine, under candidate tags.

A build never touches a final tag: only verified images get one, see pipeline/make.py. A killed
build leaves BuildKit's cache and at most a candidate, so it is safe to repeat.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from torch_images.build import bake, built, compiled, labels
from torch_images.build.bake import Parts
from torch_images.build.diskspace import check_room
from torch_images.build.job import BuildOptions, Job
from torch_images.build.plan import ImagePlan, LockedImage, plan_image, version
from torch_images.build.prepare import prepare_inputs
from torch_images.build.render import completed, render, write_context
from torch_images.errors import CommandError, ConfigError, UnfinishedError, UsageError
from torch_images.fetch.checkout import with_tree
from torch_images.fetch.tools import install_tools
from torch_images.host import git, outputs
from torch_images.host.buildx import remove_mounts
from torch_images.host.cache import filling
from torch_images.host.diagnose import explain
from torch_images.host.runner import Completed, Environment, Runner
from torch_images.host.scratch import scratch
from torch_images.host.workspace import Workspace
from torch_images.locks.image_lock import with_locked_trees
from torch_images.locks.sources import LockedTree
from torch_images.project import config_file

# What decides the bytes of images, in a clone of this project.
_SOURCES = ("docker", "images.yaml", "locks", "scripts/image", "torch_images")

# The last words of buildx where content or a snapshot of an image went while BuildKit exported it.
LOST = re.compile(
    r"failed to solve: (.* parent snapshot sha256:[0-9a-f]{64} does not exist: )?not found\s*\Z"
)


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A built image: its manifest's digest, size in the engine in bytes, and the wall time.

    `seconds` is the time of the whole build, which may include other images built in parallel.
    """

    plan: ImagePlan
    digest: str
    size: int
    seconds: float


def with_torch(
    image: LockedImage, source: str, workspace: Workspace, run: Runner, *, obtain: bool = True
) -> LockedImage:
    """The image with torch compiled from `source`, a tree of the user's.

    With `obtain`, checks the tree out into the cache, because its lock does not record the path on
    this host. Raises UsageError for an image that compiles no torch, and as `checkout.with_tree`
    does.
    """
    spec, sources = image.spec, image.lock.sources
    if not spec.source.torch or not sources:
        raise UsageError(
            f"source {spec.source.name} compiles no torch", "add --source fork to --torch-source"
        )
    cache, network, current = workspace.cache, workspace.network, spec.source.torch
    tree = with_tree(current, source, cache=cache, network=network, run=run, obtain=obtain)
    if tree == current:
        return image
    replacement = LockedTree(
        name="torch", version=tree.version, repository=tree.repository, commit=tree.commit
    )
    trees = tuple(sorted((replacement, *(tree for tree in sources.trees if tree.name != "torch"))))
    lock = replace(image.lock, sources=replace(sources, trees=trees, unlocked=True))
    return replace(image, spec=with_locked_trees(spec, lock), lock=lock)


@contextmanager
def _prepared(
    job: Job, images: Sequence[LockedImage]
) -> Iterator[tuple[tuple[ImagePlan, ...], Path, Callable[..., None]]]:
    """Rendered images, the folder with their bake file, and a function that builds them.

    The function gets more arguments of `docker buildx bake`. The folder is removed at the end.
    Raises as `prepare_inputs` does, DiskError, and EngineError for an unknown builder.
    """
    _ = job.remote  # asked before the work
    if not job.options.skip_disk_check:
        check_room(job.config, images, job.workspace.cache, job.engine)
    # A build from nothing must not meet what earlier builds left in its caches, of bytecode and of
    # compiled files. Nor may it cost them: with --no-cache, BuildKit makes a new mount and drops
    # the one it has.
    namespace = f"torch-images-{secrets.token_hex(8)}" if job.options.no_cache else ""
    parts = prepare_inputs(job, images)
    plans = tuple(plan_image(job.config, image, job.workspace.root) for image in images)
    for plan in plans:
        if compiled.keeps(plan, job.options):
            wheels = compiled.contexts(plan, job.workspace.cache)
            parts[plan.target] = replace(parts[plan.target], compiled=wheels)
    job.workspace.output.mkdir(parents=True, exist_ok=True)
    with scratch(job.workspace.output, bake.FOLDERS) as folder:
        command = write_bake(job, plans, parts, folder=folder, namespace=namespace)

        def run(*arguments: str) -> None:
            env = bake.environment(job.workspace.network, job.options)
            done = baked([*command, *arguments], job.run, env)
            if namespace:
                with suppress(CommandError):
                    remove_mounts(namespace, job.run, job.options.builder)
            if done.code:
                raise explain(done.output)

        yield plans, folder, run


def baked(command: Sequence[str], run: Runner, env: Environment) -> Completed:
    """Run a build, up to twice more if it lost what somebody removed meanwhile.

    containerd may collect content of an image while BuildKit exports it, if another image goes:
    https://github.com/containerd/nerdctl/issues/4142. All steps are in BuildKit's cache then.
    """
    for _ in range(2):
        done = run.stream(command, env=env)
        if not (done.code and LOST.search(done.output)):
            return done
    return run.stream(command, env=env)


def build(job: Job, images: Sequence[LockedImage]) -> tuple[BuildResult, ...]:
    """Build images in parallel and load them into the engine under their candidate tags.

    What an earlier build made of the same inputs stays, unless the options want it built.
    Raises DiskError, NetworkError, LockError (a wheel is not the locked one), EngineError or
    BuildError; nothing is tagged then.
    """
    images = [replace(image, small=job.options.small) for image in images]
    kept = {image.target: kept for image in images if (kept := _kept(job, image))}
    new = [image for image in images if image.target not in kept]
    made = {result.plan.target: result for result in (_build(job, new) if new else ())}
    results = kept | made
    return tuple(results[image.target] for image in images)


def _kept(job: Job, image: LockedImage) -> BuildResult | None:
    """What this project built of the same inputs, as a candidate again; None if it is gone."""
    engine, options = job.engine, job.options
    if options.no_cache or options.builder or options.cache_to or image.lock.unlocked:
        return None
    plan = plan_image(job.config, image, job.workspace.root)
    wanted = labels.write(job.config, plan).items()
    for name in (image.candidate, f"{image.spec.repository}:{version(job.config, plan)}"):
        with suppress(UsageError):
            info = engine.inspect(name)
            same = wanted <= info.labels.items()
            if same and built.is_noted(job.workspace.cache, engine, info.id):
                job.shown.say(f"{image.spec.id} is built already, from the same inputs")
                engine.tag(info.id, *image.candidate.split(":"))
                return BuildResult(plan=plan, digest=info.id, size=info.size, seconds=0)
    return None


def _build(job: Job, images: Sequence[LockedImage]) -> Iterator[BuildResult]:
    remote, engine = job.remote, job.engine
    started = time.monotonic()
    for image in images:
        if compiled.keeps(image, job.options):
            _compile(job, image)
    with _prepared(job, images) as (plans, folder, bake_with):
        metadata = folder / "metadata.json"
        arguments = ["--metadata-file", str(metadata)]
        archives = {p.target: folder / f"{p.target}.tar" for p in plans if remote}
        for plan in plans if remote else ():
            output = bake.output(plan, archives[plan.target])
            arguments += ["--set", f"{plan.target}.output={output}"]
        bake_with(*arguments)
        answer = json.loads(metadata.read_bytes())
        digests = {p.target: answer[p.target]["containerimage.digest"] for p in plans}
        for archive in archives.values():
            job.run.run(["docker", "load", "--input", str(archive)])
    native = engine.platform()
    for plan in plans:
        if plan.spec.platform != native:
            engine.unpack(plan.candidate)
    seconds = time.monotonic() - started
    for plan in plans:
        info, digest = engine.inspect(plan.candidate), digests[plan.target]
        built.note(job.workspace.cache, engine, info.id)
        yield BuildResult(plan=plan, digest=digest, size=info.size, seconds=seconds)


def _compile(job: Job, image: LockedImage) -> None:
    """Compile the wheels of an image into the cache, unless it has them."""
    plan = plan_image(job.config, image, job.workspace.root)
    folder = compiled.folder_of(plan, job.workspace.cache)
    if not folder.exists():
        with filling(folder) as new:
            _build_stage(job, image, "compiled", f"local,{bake.destination(new)}")
            compiled.arrange(new)


def _build_stage(job: Job, image: LockedImage, stage: str, output: str) -> None:
    """Build one stage of an image; `output` is the exporter with its fields."""
    with _prepared(job, [image]) as (_, _, bake_with):
        settings = (f"{image.target}.target={stage}", f"{image.target}.output=type={output}")
        bake_with(*(word for setting in settings for word in ("--set", setting)))


def alone(image: LockedImage, extension: str) -> LockedImage:
    """The image with one of its extensions, for the wheel of that."""
    spec, sources = image.spec, image.lock.sources
    assert sources
    sdists = tuple(sdist for sdist in sources.sdists if sdist.name == extension)
    extras = tuple(extra for extra in spec.variant.extras if extra.package == extension)
    return replace(
        image,
        spec=replace(spec, variant=replace(spec.variant, extras=extras)),
        lock=replace(image.lock, sources=replace(sources, sdists=sdists)),
    )


def check_compiles(image: LockedImage) -> None:
    """Raise UsageError for an image that compiles nothing."""
    if not image.lock.sources:
        raise UsageError(
            f"source {image.spec.source.name} compiles nothing", "its wheels are published"
        )


def export(job: Job, image: LockedImage, folder: Path) -> tuple[Path, ...]:
    """Compile the wheels of an image and put them into a folder, in place of earlier ones.

    Raises as `build` does, UsageError if the folder holds anything but exported wheels, and
    UnfinishedError if the options limit the work.
    """
    with outputs.filling(folder) as new:
        if job.options.share:
            # Triton compiles fast: the final build, without --share, compiles it.
            first = next(iter(sdist.name for sdist in image.lock.sdists), "torch")
            _build_stage(job, image, f"compile-{first}", "cacheonly")
            raise UnfinishedError(
                f"all of {first} is compiled already", "run the same command without --share"
            )
        _build_stage(job, image, "compiled", f"local,{bake.destination(new)}")
    return tuple(sorted(folder.glob("*.whl")))


def check_parts(options: BuildOptions, workspace: Workspace) -> None:
    """Raise UsageError for a partial build whose result no later build could use."""
    if options.share and not workspace.network.compile_cache:
        raise UsageError(
            "--share needs a compile cache that the builders share",
            "set CCACHE_REMOTE_STORAGE, see docs/compile.md",
        )
    if options.no_cache and (options.slice or options.share):
        raise UsageError(
            "--no-cache keeps nothing for the next build",
            "leave out --slice, --share or --no-cache",
        )


def write_bake(
    job: Job,
    images: Sequence[ImagePlan],
    parts: Mapping[str, Parts],
    *,
    folder: Path,
    namespace: str = "",
) -> list[str]:
    """Write contexts and bake file into a folder. Returns the command that builds them."""
    locks = {lock.name for image in images for lock in (image.lock.build, image.lock.sbom)}
    config, workspace, run = job.config, job.workspace, job.run
    network = workspace.network
    if network.ca_bundle:
        _copy_certificates(network.ca_bundle, folder / bake.CERTIFICATES)
    tools = {name: str(install_tools(name, workspace, run)) for name in sorted(locks)}
    shared = bool(network.compile_cache)
    for image in images:
        context = image.context
        if shared and image.lock.sources:  # lets compilers reach the cache; not an input
            context = render(config, image.spec, image.lock, workspace.root, shared_cache=True)
        # The files of an image do not depend on how its layers are packed.
        files = completed(context, version(config, replace(image, small=False)))
        write_context(files, folder / image.spec.id)
        if bake.needs_no_secrets(image, parts[image.target], job.options):
            dockerfile = folder / image.spec.id / "Dockerfile"
            dockerfile.write_text(bake.without_secrets(dockerfile.read_text(), network))
    document = bake.bake_file(job, images, parts, folder=folder, tools=tools, namespace=namespace)
    file = folder / bake.FILE
    file.write_text(json.dumps(document, indent=2) + "\n")
    if not network.on_loopback:
        return bake.bake_command((file,), job.options)
    host = folder / "docker-network.yaml"
    host.write_text(json.dumps(bake.host_network(images), indent=2) + "\n")
    command = bake.bake_command((host, file), job.options)
    if "--allow" in run.run(["docker", "buildx", "bake", "--help"]).output:
        # buildx 0.17 and newer require this for the host's network; older ones lack the option.
        command.append("--allow=network.host")
    return command


def _copy_certificates(bundle: Path, folder: Path) -> None:
    """Copy a CA bundle into a new folder, as the one file of a named context.

    Raises ConfigError for one that this user cannot read.
    """
    folder.mkdir(parents=True)
    copy = folder / bake.CA_FILE
    try:
        copy.write_bytes(bundle.read_bytes())
    except PermissionError:
        raise ConfigError(f"{bundle} cannot be read", "let this user read it") from None
    copy.chmod(0o644)  # BuildKit's key of a step has its mode


def revision(workspace: Workspace, run: Runner) -> str | None:
    """The commit that the project is at; None without git.

    It ends in "-dirty" if files differ from it that can decide an image's bytes, or if images.yaml
    or locks of another place are used: `reproduce` then refuses to build from it.
    """
    root = workspace.root
    if not (root / ".git").exists() or not shutil.which("git"):
        return None
    env = git.environment()
    head = run.run(["git", "-C", str(root), "rev-parse", "--verify", "HEAD"], env=env, check=False)
    if head.code:
        return None
    changed = ["git", "-C", str(root), "status", "--porcelain", "--", *_SOURCES]
    status = run.run(changed, env=env, check=False)
    own = (config_file(root), workspace.locks) == (root / "images.yaml", root / "locks")
    return head.output.strip() + ("" if own and not status.output.strip() else "-dirty")
