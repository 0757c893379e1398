"""Locked images -> built, verified and tagged images, each with its SBOM: the verb `build`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from torch_images.build.bake import BuildOptions
from torch_images.build.build import BuildResult, build
from torch_images.build.plan import LockedImage
from torch_images.config.types import Config
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace, alone
from torch_images.layers.make import Progress, no_progress
from torch_images.publish.tag import tag
from torch_images.verify import sbom
from torch_images.verify.suites import Progress as Checking
from torch_images.verify.verify import VerifyReport, verify


@dataclass(frozen=True, kw_only=True)
class Made:
    """A built image, the report of its checks, and its tags in the engine.

    An unverified image has no report, and only its candidate tag.
    """

    result: BuildResult
    report: VerifyReport | None
    tags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """How a build shows progress.

    `layers` is entered while layers are packed. `say` gets a line before work that takes minutes.
    `checks` is entered for each verification, and yields a function of the share that is done.
    """

    layers: Progress = no_progress
    say: Callable[[str], None] = lambda _: None
    checks: Callable[[], AbstractContextManager[Checking | None]] = nullcontext


QUIET = Shown()


def make(
    config: Config,
    images: Sequence[LockedImage],
    workspace: Workspace,
    options: BuildOptions,
    *,
    engine: Engine,
    run: Runner,
    shown: Shown = QUIET,
    unverified: bool = False,
) -> tuple[Made, ...]:
    """Build images in parallel; then verify, tag and describe them one by one.

    With `unverified`, the images only get their candidate tags.
    Raises as `build` does, and VerifyError for an image that fails its checks. The images before
    it then have their tags.
    """
    with undisturbed(images, workspace, shown):
        results = build(
            config, images, workspace, options, engine=engine, run=run, progress=shown.layers
        )
        if unverified:
            return tuple(Made(result=r, report=None, tags=(r.plan.candidate,)) for r in results)
        return tuple(
            check(config, result, workspace, options, engine=engine, run=run, shown=shown)
            for result in results
        )


@contextmanager
def undisturbed(
    images: Sequence[LockedImage], workspace: Workspace, shown: Shown
) -> Iterator[None]:
    """Wait for other builds of these images in this workspace, and let none begin meanwhile.

    Both would move the candidate tag.
    """
    with ExitStack() as locks:
        workspace.output.mkdir(parents=True, exist_ok=True)
        for name in sorted({image.spec.id for image in images}):
            waits = partial(shown.say, f"another build of {name} is running here: waiting for it")
            locks.enter_context(alone(workspace.output / f".{name}.lock", waits))
        yield


def check(
    config: Config,
    result: BuildResult,
    workspace: Workspace,
    options: BuildOptions,
    *,
    engine: Engine,
    run: Runner,
    shown: Shown = QUIET,
) -> Made:
    """Verify, tag and describe a built image.

    Reuses a report of the same digest and checks, except for a build without cache. Raises
    VerifyError for an image that fails its checks.
    """
    plan = result.plan
    shown.say(f"verifying {plan.spec.id}")
    with shown.checks() as shares:
        report = verify(
            result.digest,
            config,
            plan,
            workspace,
            engine=engine,
            run=run,
            reuse=True,
            fresh=options.no_cache,
            progress=shares,
        )
    tags = tag(config, plan, report, engine)
    sbom.save(result.digest, plan.spec.id, workspace, engine)
    return Made(result=result, report=report, tags=tags)
