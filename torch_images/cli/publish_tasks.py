"""Verbs that tag and publish verified images."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torch_images.cli import verb
from torch_images.cli.options import DryRun, Image, Json, Registry, flag, number, option

if TYPE_CHECKING:
    from torch_images.config.types import Config
    from torch_images.host.workspace import Workspace
    from torch_images.publish.runpod import PodImage


class Tag(Image, Registry, DryRun, Json):
    """The options of `tag`."""


@verb.verb(Tag, example="tag torch-cu130:sm120 --registry ghcr.io/me --dry-run")
def tag(options: Tag) -> verb.Result:
    """Tag a verified image in the engine with the names to push it under."""
    from torch_images.cli import report
    from torch_images.publish.push import in_engine, preview
    from torch_images.verify.identify import verified_image

    config, workspace = verb.config(), verb.workspace()
    where = verb.namespace(config, options.registry)
    engine = verb.engine()
    subject = verified_image(config, options.image, workspace, engine)
    lookup = partial(in_engine, engine=engine)
    moves = preview(
        *(config, subject, where), lookup=lookup, workspace=workspace, in_registry=False
    ).moves
    for move in moves if not options.dry_run else ():
        if move.changes:
            engine.tag(subject.info.id, *move.reference.rsplit(":", 1))
    text = report.moves(moves, done=not options.dry_run)
    return verb.Result(data=[asdict(m) for m in moves], text=text)


class Push(Tag):
    retries: int = option(
        "consecutive failed attempts without progress before giving up",
        default=5,
        parse=number(least=0),
    )


@verb.verb(Push, example="push torch-cu130:sm120 --registry ghcr.io/me")
def push(options: Push) -> verb.Result:
    """Push a verified image and its tags to a registry; safe to repeat.

    If the image exists for several platforms, its floating tags point to an index. The push for
    the last platform creates it.
    """
    from torch_images.build.build import revision
    from torch_images.cli import report
    from torch_images.host.runner import Runner
    from torch_images.publish.datasheet import describe, save
    from torch_images.publish.push import Transfer, preview, publish
    from torch_images.publish.registry import contents, retry
    from torch_images.verify.identify import verified_image

    config, workspace, run = verb.config(), verb.workspace(), Runner()
    where = verb.namespace(config, options.registry)
    engine = verb.engine()
    subject = verified_image(config, options.image, workspace, engine)
    lookup = verb.registry_lookup(options.retries)
    look = partial(preview, config, subject, where, lookup=lookup, workspace=workspace)
    planned = look()
    if options.dry_run:
        text = report.moves(planned.moves, done=False)
        return verb.Result(data=[asdict(m) for m in planned.moves], text=text)
    with verb.transfer_progress() as show:
        planned = publish(
            *(look, subject.info.id, engine),
            run=run,
            retries=options.retries,
            transfer=Transfer(show),
            say=verb.say,
        )
    platform = subject.plan.spec.platform.name
    look_inside = partial(contents, planned.names[0], run, platform=platform)
    content = retry(look_inside, retries=options.retries, say=verb.say)
    sheet = describe(
        subject,
        engine,
        *content,
        commit=revision(workspace.root, run) or "",
        references=planned.names,
        indexes=planned.indexes,
    )
    save(sheet, workspace)
    return verb.Result(data=sheet, text=report.moves(planned.moves, done=True))


class Datasheet(Image, Json):
    """The options of `datasheet`."""


@verb.verb(Datasheet, example="datasheet torch-cu130:sm120")
def datasheet(options: Datasheet) -> verb.Result:
    """Print the facts of a verified image: versions, layers with sizes, digests, checks."""
    from torch_images.build.build import revision
    from torch_images.host.runner import Runner
    from torch_images.publish.datasheet import describe, markdown, save
    from torch_images.verify.identify import verified_image

    config, workspace, engine = verb.config(), verb.workspace(), verb.engine()
    subject = verified_image(config, options.image, workspace, engine)
    content = engine.contents(subject.info.id)
    commit = revision(workspace.root, Runner()) or ""
    sheet = describe(subject, engine, *content, commit=commit)
    save(sheet, workspace)
    return verb.Result(data=sheet, text=markdown(sheet).rstrip())


class Runpod(Registry, Json):
    image: str = option(
        "tag, image id, identifier, or name in a registry with its host, which is not "
        "verified here (default: the image of `pods` in images.yaml)"
    )
    credentials: str = option(
        "id of registry credentials in your RunPod account, for an image that is not public"
    )
    geforce: bool = flag("allow only machines on which GeForce GPUs work too")
    apply: bool = flag("create the template, or update the one of its name; needs RUNPOD_API_KEY")
    dry_run: bool = flag("only show what would change", needs="apply")


@verb.verb(Runpod, example="runpod --image torch-cu130:pod --registry ghcr.io/me")
def runpod(options: Runpod) -> verb.Result:
    """Print a RunPod pod template; with --apply, create or update it there."""
    from torch_images.cli import report
    from torch_images.errors import UsageError
    from torch_images.publish.runpod import Templates, body, changes, readme

    config, workspace = verb.config(), verb.workspace()
    key = os.environ.get("RUNPOD_API_KEY", "")
    if options.apply and not key:
        raise UsageError("--apply needs RUNPOD_API_KEY", "export the key of your RunPod account")
    subject = _pod_image(options, config, workspace)
    template = body(config, subject, geforce=options.geforce, credentials=options.credentials)
    text = readme(config, subject, template)
    if not options.apply:
        result = verb.Result(
            data={"template": template, "readme": text}, text=verb.as_json(template)
        )
    else:
        templates = Templates(config, key, workspace.network)
        if options.credentials:
            templates.require_credentials(options.credentials)
        existing = templates.find(template["name"])
        differences = changes(template, existing)
        verb.say(report.template(template["name"], existing, differences))
        if options.dry_run:
            return verb.Result(data={"template": template, "changes": differences}, text="")
        identifier = templates.save(template, existing)
        data = {"id": identifier, "template": template, "readme": text}
        result = verb.Result(data=data, text=identifier)
    if not options.json:
        verb.say(report.readme(text))
    return result


def _pod_image(options: Runpod, config: Config, workspace: Workspace) -> PodImage:
    """The image of a template. Its registry must have it, public or behind credentials."""
    from torch_images.config.choose import choose
    from torch_images.errors import UsageError
    from torch_images.host.runner import Runner
    from torch_images.publish.registry import has_host, is_public, published, retry
    from torch_images.publish.runpod import CONSOLE, PLATFORM, built, in_registry
    from torch_images.verify.identify import verified_image

    where = verb.namespace(config, options.registry)
    default = choose(config, variant=config.pods.variant, platform=PLATFORM)
    image = options.image or default.id
    if has_host(image):
        if options.registry:
            raise UsageError(f"--registry is given, but {image} names one", "leave --registry out")
        look = partial(published, image, Runner(), platform=PLATFORM)
        image_info = retry(look, retries=5, say=verb.say)
        subject = in_registry(config, image, image_info)
        verb.say(f"{image} was not verified here: its template follows its labels")
    else:
        verified = verified_image(config, image, workspace, verb.engine())
        subject = built(config, verified, where, verb.registry_lookup(5))
    if not options.credentials and not is_public(subject.reference, Runner()):
        raise UsageError(
            f"{subject.reference} is not public, so RunPod needs credentials to pull it",
            f"add them at {CONSOLE}/settings, and give their id: --credentials ID",
        )
    return subject


class Site(Registry):
    output: str = option("folder for the site, new or holding an earlier one (default: build/site)")
    commit: str = option("commit of this project to show on the pages")


@verb.verb(Site, example="site --output build/site")
def site(options: Site) -> verb.Result:
    """Write a static site: an image picker by GPU and driver, and a page for each image."""
    from torch_images.publish.site import generate, write

    config, workspace = verb.config(), verb.workspace()
    where = verb.namespace(config, options.registry)
    files = generate(config, verb.ROOT, workspace.locks, namespace=where, commit=options.commit)
    folder = write(files, Path(options.output) if options.output else workspace.output / "site")
    return verb.Result(text=f"wrote {len(files)} files to {folder}; open {folder / 'index.html'}")
