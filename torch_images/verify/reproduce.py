"""Rebuild an image from nothing and compare both: do its labels name what it is built from?

The rebuild uses a copy of this checkout if that builds the image, else a new checkout of the commit
that the image was built from. It has its own environment, the locks inside the image, and no cache
or file of an earlier build. Then the digests are compared and, if they differ, the files.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_images.build import built, labels
from torch_images.build.job import Job
from torch_images.build.plan import LockedImage, locked, plan_image
from torch_images.config.fields import COMMIT
from torch_images.config.types import Config
from torch_images.errors import BuildError, CommandError, UsageError, shown
from torch_images.host import git
from torch_images.host.diagnose import of_registry
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.scratch import scratch
from torch_images.host.workspace import Workspace, scratch_room
from torch_images.oci.compression import Compression, parse
from torch_images.oci.diff import Difference, compare
from torch_images.project import config_file, is_clone
from torch_images.verify import ledger
from torch_images.verify.identify import carried_lock, spec_of

IDENTICAL, SAME_CONTENT, DIFFERENT = "identical", "same content", "different"

# Output at the top of the project's folder, which is not part of a checkout.
_CACHES = (".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache")
_LEFT_BEHIND = (".git", ".venv", "build", "dist", *_CACHES)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a rebuild; digests are pairs: the image's and the rebuilt image's.

    `outcome` is "identical" (equal manifest digests), "same content" (equal configuration digests:
    compressed by another builder) or "different". `commit` is that of the rebuild, "" for a copy of
    this checkout. `unlocked` says whether a build resolved a part of the lock. `seconds` is the
    time of the rebuild.
    """

    image: str
    outcome: str
    manifests: tuple[str, str]
    commit: str
    lock: str
    lock_date: str
    unlocked: bool
    seconds: float
    differences: tuple[Difference, ...]

    @property
    def reproducible(self) -> bool:
        """Whether both builds have the same content."""
        return self.outcome != DIFFERENT


def reproduce(job: Job, image: str, *, commit: str = "") -> Verdict:
    """Rebuild an image of the engine, or of a registry, and compare.

    `commit` is the one to build, "" for this checkout or, if that builds another image, for the
    commit that the ledger has for its inputs; this repository or the project's homepage has it. The
    image does not name it: a rebuild runs code of the checkout, so the user must trust it. Raises
    UsageError for an image that cannot be rebuilt, LockError if its lock does not match its label,
    BuildError if the rebuild fails.
    """
    config, workspace, engine, run = job.config, job.workspace, job.engine, job.run
    _obtain(image, engine, run)
    info = engine.inspect(image)
    image_labels = labels.read(info.labels)
    spec = spec_of(config, image, image_labels)
    lock = carried_lock(image, engine)
    target = locked(job.config, spec, lock)
    if not commit and not _builds(config, target, image_labels.inputs, workspace.root):
        commit = ledger.commit_of(workspace.root, image_labels.inputs)
        _require_commit(image, commit)
    with (
        scratch(scratch_room(), "torch-images-again-") as room,
        _kept(info.id, target, engine),
    ):
        root = room / "checkout"
        if commit:
            _check_out(commit, root, workspace, config.homepage, run)
        elif is_clone(workspace.root):
            _copy(workspace, root)
        options = [f"--compression={parse(image_labels.compression or Compression.FAST)}"]
        started = time.monotonic()
        rebuilt = _rebuild(target, root, room / "cache", options, run)
        built.note(workspace.cache, engine, rebuilt)  # the rebuild noted it in another cache
        seconds = round(time.monotonic() - started, 1)
        outcome, differences = IDENTICAL, tuple[Difference, ...]()
        if rebuilt != info.id:
            with engine.blobs(info.id) as first, engine.blobs(rebuilt) as second:
                same, differences = compare((info.id, rebuilt), (first, second))
            outcome = SAME_CONTENT if same else DIFFERENT
        return Verdict(
            image=image,
            outcome=outcome,
            manifests=(info.id, rebuilt),
            commit=commit,
            lock=f"sha256:{lock.digest}",
            lock_date=lock.date.isoformat(),
            unlocked=lock.unlocked,
            seconds=seconds,
            differences=differences,
        )


def _obtain(image: str, engine: Engine, run: Runner) -> None:
    """Pull an image that the engine lacks, if its name can be that of a registry's."""
    with contextlib.suppress(UsageError):
        engine.inspect(image)
        return
    done = run.stream(["docker", "pull", image]) if "/" in image else None
    # An image named by digest is right if the engine has it, despite a problem.
    if done and done.code and not ("@" in image and engine.digest(image)):
        raise of_registry(image, done.output)


def _builds(config: Config, image: LockedImage, inputs: str, root: Path) -> bool:
    """Whether the checkout at `root` builds the image with these inputs.

    An installed package builds only a user's own images.
    """
    here = is_clone(root) or image.spec.own
    return bool(here) and f"sha256:{plan_image(config, image, root).identity}" == inputs


def _require_commit(image: str, commit: str) -> None:
    """Raise UsageError unless a recorded commit can be checked out."""
    if not commit:
        raise UsageError(
            f"this checkout builds other inputs than those of {image}, and docs/ledger.csv has "
            "no commit for them",
            "name the commit with --commit; the datasheet and the attestation of a published image "
            "have it",
        )
    if commit.endswith("-dirty"):
        raise UsageError(
            f"{image} was built from uncommitted files on {commit.removesuffix('-dirty')}",
            "commit, build again, and reproduce the new image",
        )


def _copy(workspace: Workspace, root: Path) -> None:
    """Put the files of this checkout into `root`, committed or not.

    images.yaml and locks/ are those in use, which may be elsewhere.
    """
    source, room = workspace.root, root.parent.absolute()

    def left(folder: str, names: list[str]) -> list[str]:
        top = Path(folder) == source
        return [n for n in names if (top and n in _LEFT_BEHIND) or Path(folder, n) == room]

    shutil.copytree(source, root, symlinks=True, ignore=left)
    shutil.copyfile(config_file(source), root / "images.yaml")
    if workspace.locks != source / "locks":
        shutil.rmtree(root / "locks", ignore_errors=True)
        shutil.copytree(workspace.locks, root / "locks")


def _check_out(commit: str, root: Path, workspace: Workspace, source: str, run: Runner) -> None:
    """Put a commit into `root`, from this repository if it has it, else from `source`."""
    if not COMMIT.fullmatch(commit):
        raise UsageError(f"'{shown(commit)}' is not a commit", "give its 40 hexadecimal digits")
    env = git.environment()
    here = ["git", "-C", str(workspace.root), "cat-file", "-e", f"{commit}^{{commit}}"]
    origin = str(workspace.root) if not run.run(here, env=env, check=False).code else source
    try:
        run.run(["git", "clone", "--quiet", "--no-checkout", "--", origin, str(root)], env=env)
        run.run(["git", "-C", str(root), "checkout", "--quiet", "--detach", commit], env=env)
    except CommandError as error:
        raise UsageError(
            f"commit {commit} could not be fetched from {origin}: {error.output.strip()[-200:]}",
            "run this in a clone that has it",
        ) from None


def _rebuild(
    image: LockedImage, root: Path, cache: Path, options: Sequence[str], run: Runner
) -> str:
    """Build in a checkout, with the lock of the image and no other cache. Returns the digest.

    A user's own image has its lock in the project's folder, and an installed package builds it.
    """
    own = image.spec.own
    for name, text in image.lock.texts().items() if not own else ():
        (root / "locks" / name).write_text(text, encoding="utf-8")
    program = [str(root / "inv")] if root.exists() else [sys.executable, "-m", "torch_images"]
    command = [*program, *(("--project", str(own.root)) if own else ()), "build"]
    command += ["--no-cache", "--unverified", "--json", *options, *image.spec.arguments]
    names = ("TORCH_IMAGES_CONFIG", "TORCH_IMAGES_LOCKS", "VIRTUAL_ENV", "PYTHONPATH")
    env = {**dict.fromkeys(names), "TORCH_IMAGES_CACHE": str(cache)}
    try:
        where = root if root.exists() else cache.parent
        done = run.run(command, cwd=where, env=env, show_errors=True)
    except CommandError:
        raise BuildError(f"{image.spec.id} could not be rebuilt; the lines above say why") from None
    told = json.loads(done.output)
    # Commits before the one that added `schema` print a list.
    return str((told["images"] if isinstance(told, dict) else told)[0]["digest"])


def original(digest: str) -> str:
    """The tag that keeps an image while it is rebuilt."""
    return f"torch-images-original:{digest.removeprefix('sha256:')[:12]}"


@contextlib.contextmanager
def _kept(digest: str, image: LockedImage, engine: Engine) -> Iterator[None]:
    """Keep an image, and the one with the candidate tag, while the rebuild uses that tag."""
    candidate = engine.digest(image.candidate)
    kept = {digest, *([candidate] if candidate else [])}
    for each in kept:
        engine.tag(each, *original(each).split(":"))
    try:
        yield
    finally:
        engine.untag(image.candidate)
        if candidate:
            engine.tag(candidate, *image.candidate.rsplit(":", 1))
        for listed in engine.listed():
            # Removing the only tag would remove the image.
            if listed.id in kept and len(listed.tags) > 1:
                engine.untag(original(listed.id))
