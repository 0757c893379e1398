"""The site: one page with an image picker by GPU and driver, and all images. Static files.

The same inputs give the same bytes. The template in site/ escapes all data. The page is complete
without JavaScript, and loads nothing from other servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from torch_images.config.image import ImageSpec
from torch_images.config.matrix import matrix
from torch_images.config.types import Architecture, Config
from torch_images.host import outputs
from torch_images.locks.image_lock import compat_versions
from torch_images.pick import answers, pick
from torch_images.pick.gpus import CAVEATS
from torch_images.verify import ledger

_STATIC = ("favicon.svg", "filter.js", "style.css")


def generate(
    config: Config, root: Path, locks: Path, *, namespace: str, commit: str = ""
) -> dict[str, bytes]:
    """The files of the site by path.

    `root` is the project's folder, with site/. `commit` is the project's, to show on the page, or
    "". Raises LockError for a missing lock.
    """
    state = ledger.reader(config, ledger.read(root), root, locks)
    compat = {platform: compat_versions(config, locks, platform) for platform in config.platforms}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(root / "site"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page = environment.get_template("index.html.j2").render(
        config=config,
        commit=commit,
        caveat="; ".join(CAVEATS[p] for p in config.platforms if p in CAVEATS),
        branches=answers.branches(config, compat),
        command=pick.command("IMAGE"),
        answers=list(answers.rows(config, compat, namespace=namespace, state=state)),
        words=partial(_words, config),
        listed={spec.id for spec in matrix(config)},
        namespace=namespace,
        aliases=dict(config.gpu_aliases),
        images=[_row(spec, state(spec)) for spec in matrix(config)],
    )
    files = {name: (root / "site" / name).read_bytes() for name in _STATIC}
    return {**files, "index.html": page.encode()}


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Write a site to a folder, replacing an earlier site.

    Raises UsageError rather than replace files of a user, see host/outputs.py.
    """
    with outputs.filling(folder) as new:
        for name, data in files.items():
            (new / name).write_bytes(data)


def _words(config: Config, answer: answers.Row) -> str:
    """Text for searching besides the GPUs of an answer: "8.9 sm89 Ada Lovelace ..."."""
    capability = answer.kind.partition(",")[0]
    served = [_served(a) for a in config.architectures if str(a.capability) == capability]
    return " ".join((*(served or [capability]), answer.platform))


def _served(arch: Architecture) -> str:
    return f"{arch.capability} {arch.capability.sm} {arch.family}"


def _row(spec: ImageSpec, state: ledger.State) -> dict[str, Any]:
    """A row of the list of images; `gpus` and `words` are text for searching."""
    arches = spec.architectures
    axes = (spec.cuda.version, spec.torch, spec.base.name, spec.variant.name, spec.source.name)
    return {
        "id": spec.id,
        "arches": " ".join(a.name for a in arches),
        "torch": spec.torch,
        "python": spec.base.python,
        "state": state.words,
        "gpus": ", ".join(name for a in arches for name in (*a.geforce, *a.gpus)),
        "words": " ".join((spec.id, *axes, spec.platform.name, *map(_served, arches))),
    }
