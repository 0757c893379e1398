"""The parent images of a published image, beside it: what a build takes in place of packing.

All layers of a parent image are layers of the image, which the registry has by then. So a push
sends a configuration and a manifest; beside an image whose layers were packed again, as small as
they get, it sends the layers as they were before, too. Parent images are named by digest where they
are used; the tag keeps a registry from collecting them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch_images.build.substitution import known
from torch_images.config.types import Config
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace
from torch_images.layers.parent import parent_name
from torch_images.locks.layers import read_record
from torch_images.publish import registry
from torch_images.publish.push import Transfer, arrived, send
from torch_images.verify.identify import VerifiedImage


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Parent images to push: for each the name in the engine, its digest, and the name to give it.

    `lacking` says why there are none, or not all; "" if there are all.
    """

    images: tuple[tuple[str, str, str], ...] = ()
    lacking: str = ""


def beside(
    config: Config, image: VerifiedImage, namespace: str, workspace: Workspace, engine: Engine
) -> Beside:
    """The parent images of an image that the engine still has, with their names in its repository.

    Only those whose layers are layers of the image. Raises LockError where the record of layers is
    damaged.
    """
    spec = image.plan.spec
    name, repository = spec.id, f"{namespace}/{spec.repository}"
    if image.plan.lock.base.image:
        return Beside(lacking=f"{name}: no parent image beside it: it holds copies of its wheels")
    found = known(config, read_record(workspace.locks), image.plan, workspace.root)
    if not found:
        why = "locks/layers.txt lacks a layer of it; run `invoke lock --layers` and commit that"
        return Beside(lacking=f"{name}: no parent image beside it: {why}")
    images, held = [], set(image.info.layers)
    for parent in found.parents:
        inside, digest = parent_name(parent.image), parent.image.digest
        if held >= {layer.diff_id for layer in parent.layers} and engine.digest(inside) == digest:
            short = digest.removeprefix("sha256:")[:16]
            images.append((inside, digest, f"{repository}:parent-{short}"))
    lacking = ""
    if len(images) < len(found.parents):
        why = "the engine does not have it, or the image is not of it; build the image again"
        lacking = f"{name}: a parent image is not beside it: {why}"
    return Beside(images=tuple(images), lacking=lacking)


def push_beside(
    what: Beside,
    engine: Engine,
    *,
    retries: int,
    transfer: Transfer,
    lookup: Callable[[str], str],
    say: Callable[[str], None],
) -> None:
    """Push parent images whose layers are in the registry, but for those that are there already.

    `lookup(reference)`: the digest that a registry has for it, "" for none. Raises as `push` does.
    """
    retry = partial(registry.retry, retries=retries, say=say, progress=lambda: transfer.done)
    for name, digest, reference in what.images:
        if lookup(reference) == digest:
            continue
        engine.tag(name, *reference.rsplit(":", 1))
        try:
            retry(partial(send, reference, engine, transfer))
            arrived(reference, digest, engine, retry, say)
        finally:
            engine.untag(reference)
