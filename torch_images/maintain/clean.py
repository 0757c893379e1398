"""What builds leave -> gone."""

from __future__ import annotations

import shutil

from torch_images.build import labels
from torch_images.build.plan import CANDIDATE
from torch_images.build.render import is_context
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.layers.parent import PARENT_IMAGES
from torch_images.verify.reproduce import ORIGINAL


def clean(
    workspace: Workspace,
    engine: Engine,
    run: Runner,
    *,
    images: bool = False,
    cache: bool = False,
) -> tuple[str, ...]:
    """Remove what builds leave: contexts and candidates, and on request images and build cache.

    The cached bases and tools stay, and so do reports. Returns a line for each thing removed.
    """
    lines = []
    for folder in sorted(workspace.output.glob("cu*")):
        if folder.is_symlink() or not is_context(folder):
            continue  # no context of ours
        shutil.rmtree(folder)
        lines.append(f"removed {folder.relative_to(workspace.root)}")
    for prefix in (f"{CANDIDATE}:", f"{ORIGINAL}:"):
        for name in engine.tags(prefix):
            engine.untag(name)
            lines.append(f"removed image {name}")
    for image in engine.ours(labels.ID, PARENT_IMAGES) if images else ():
        name = ", ".join(image.tags) or f"{image.id}, which had no tag any more"
        if image.in_use:
            lines.append(f"left image {name}: a container uses it")
        else:
            engine.untag(image.id)
            lines.append(f"removed image {name}")
    if not cache:
        return tuple(lines)
    pruned = run.run(["docker", "buildx", "prune", "--force", "--all"]).output.splitlines()
    lines.append(f"build cache: {pruned[-1].lower() if pruned else 'nothing to remove'}")
    return tuple(lines)
