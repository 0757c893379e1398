"""Verbs that tag and publish verified images."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from functools import partial
from pathlib import Path

from torch_images.build.build import revision
from torch_images.cli import report, verb
from torch_images.cli.options import DryRun, Image, Json, Registry, flag, option, word
from torch_images.config.choose import choose, choose_id
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.host.runner import Runner
from torch_images.pick.pick import name
from torch_images.publish.datasheet import describe, save
from torch_images.publish.push import in_engine, indexes, plan, send
from torch_images.publish.push import push as push_all
from torch_images.publish.registry import at, has_host, is_public, of_platform, pull_size, retry
from torch_images.publish.runpod import CONSOLE, PLATFORM, PodImage, body, command, pod_image
from torch_images.publish.site import generate, write
from torch_images.publish.tag_rules import STAYS, Move
from torch_images.verify.identify import verified_image


class Tag(Image, Registry, DryRun, Json):
    """The options of `tag` and `push`."""


@verb.verb(Tag, example="tag torch-cu130:sm120 --registry ghcr.io/me --dry-run")
def tag(options: Tag) -> verb.Result:
    """Tag a verified image with the names to push it under."""
    config, workspace = verb.config(), verb.workspace()
    where = verb.namespace(config, options.registry)
    engine = verb.engine()
    subject = verified_image(config, options.image, workspace, engine)
    lookup = partial(in_engine, engine=engine)
    moves = plan(config, subject, where, lookup=lookup, workspace=workspace, joins=False)
    for move in moves if not options.dry_run else ():
        if move.changes:
            engine.tag(subject.info.id, *move.reference.rsplit(":", 1))
    text = report.moves(moves, done=not options.dry_run)
    return verb.Result(data={"tags": [asdict(m) for m in moves]}, text=text)


@verb.verb(Tag, example="push torch-cu130:sm120 --registry ghcr.io/me")
def push(options: Tag) -> verb.Result:
    """Push a verified image and its tags to a registry.

    It is safe to repeat. If the image exists for several platforms, its
    floating tags point to an index. The push for the last platform creates it.
    """
    config, workspace, run = verb.config(), verb.workspace(), Runner()
    where = verb.namespace(config, options.registry)
    engine = verb.engine()
    subject = verified_image(config, options.image, workspace, engine)
    lookup = verb.registry_lookup()
    look = partial(plan, config, subject, where, lookup=lookup, workspace=workspace)
    if options.dry_run:
        moves = look()
        text = report.moves(moves, done=False)
        return verb.Result(data={"tags": [asdict(m) for m in moves]}, text=text)

    def carry_out(move: Move) -> None:
        retry(partial(send, move, engine, run), say=verb.say)

    moves, now = push_all(look, carry_out)
    sheet = describe(
        subject,
        commit=revision(workspace, run) or "",
        references=[move.reference for move in moves if move.state != STAYS],
        indexes=indexes(now),
    )
    save(sheet, workspace)
    return verb.Result(data=sheet, text=report.moves(moves, done=True))


class Runpod(Registry):
    image: str = word(
        "a published image: its identifier, or its name, after that of --registry if it has no "
        "host (default: the image of `pods` in images.yaml)",
        required=False,
    )
    credentials: str = option(
        "id of registry credentials in your RunPod account, for an image that is not public"
    )
    geforce: bool = flag("allow only machines on which GeForce GPUs work too")


@verb.verb(Runpod, example="runpod --image torch-cu130:pod --registry ghcr.io/me")
def runpod(options: Runpod) -> verb.Result:
    """Print a RunPod template, and the command that creates it."""
    config = verb.config()
    subject = _pod_image(options, config)
    template = body(config, subject, geforce=options.geforce, credentials=options.credentials)
    verb.say(
        "to create it, save the template as pod.json, export RUNPOD_API_KEY, and run\n\n"
        f"  {command(config)}\n"
    )
    return verb.Result(text=verb.as_json(template))


def _pod_image(options: Runpod, config: Config) -> PodImage:
    """The image of a template. Its registry must have it, public or behind credentials."""
    run, where = Runner(), verb.namespace(config, options.registry)
    spec, named = choose(config, variant=config.pods.variant, platform=PLATFORM), options.image
    with contextlib.suppress(UsageError):
        spec, named = choose_id(config, named), ""
    image = named or name(config, spec, where)
    if not has_host(image):
        image = f"{where}/{image}"
    elif named and options.registry:
        raise UsageError(f"--registry is given, but {image} names one", "leave --registry out")
    published = retry(partial(of_platform, image, PLATFORM, run), say=verb.say)
    exact = at(image, published.digest)
    size = retry(partial(pull_size, exact, run), say=verb.say)
    subject = pod_image(config, image, published, size)
    if not options.credentials and not is_public(image, run):
        raise UsageError(
            f"{image} is not public, so RunPod needs credentials to pull it",
            f"add them at {CONSOLE}/settings, and give their id: --credentials ID",
        )
    return subject


class Site(Registry):
    output: str = option("folder for the site, new or holding an earlier one (default: build/site)")
    commit: str = option("commit of this project to show on the page")


@verb.verb(Site, example="site --output build/site")
def site(options: Site) -> verb.Result:
    """Write a site that picks an image by GPU and driver."""
    config, workspace = verb.config(), verb.workspace()
    where = verb.namespace(config, options.registry)
    files = generate(config, verb.ROOT, workspace.locks, namespace=where, commit=options.commit)
    folder = Path(options.output) if options.output else workspace.output / "site"
    write(files, folder)
    return verb.Result(text=f"wrote {len(files)} files to {folder}; open {folder / 'index.html'}")
