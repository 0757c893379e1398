"""Whether the project's programs were tested with the torch and the Python of an image.

What tests/programs checks is equal in all images with the same torch, Python and system, so it runs
once for each of them. A passed run leaves a record in the cache. An image without one, e.g. that
of a fork's torch or of another Python, runs it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_images.host.cache import Part, used, write
from torch_images.host.workspace import Workspace
from torch_images.platforms import Platform
from torch_images.project import PACKAGE
from torch_images.verify.suites import files_below, files_hash

# Packages beside torch that tests/programs looks at, where an image has them.
_PACKAGES = ("flash-attn-4", "nvidia-cutlass-dsl", "pip", "setuptools", "triton")
# The tests, what they share with other checks, and what of ours is at work in an image.
_FILES = ("tests/programs", "tests/container", "scripts/bench", "scripts/image")
_OF_IMAGES = "tests/container/test_"


class Record:
    """The record of a passed run for an image with a claim."""

    def __init__(self, workspace: Workspace, claim: Mapping[str, Any], machine: Platform) -> None:
        facts = {name: claim[name] for name in ("torch", "python", "system", "platform")}
        facts["packages"] = {n: v for n, v in claim["packages"].items() if n in _PACKAGES}
        # Two trees of one version are two torches.
        facts["sources"] = {n: t for n, t in claim["locks"].items() if n.startswith("source-")}
        facts["files"] = _files(workspace.root)
        self._own = _path(workspace, facts)
        self._valid = {self._own}
        if claim["platform"] != machine.name:
            # An emulator skips checks: its run proves nothing for a real processor. It takes eight
            # minutes, and these programs have no machine code of their own.
            self._own = _path(workspace, facts | {"emulated": True})
            self._valid |= {self._own, _path(workspace, facts | {"platform": machine.name})}

    def exists(self) -> bool:
        """Whether there was such a run; for an emulated image, one of either platform counts."""
        return any(used(path).exists() for path in self._valid if path.exists())

    def keep(self, digest: str) -> None:
        """Record that the run passed in an image."""
        write(self._own, f"{digest}\n")


def _files(root: Path) -> str:
    files = files_below(PACKAGE.parent, "torch_images/inside")
    files |= {n: data for folder in _FILES for n, data in files_below(root, folder).items()}
    return files_hash({n: data for n, data in files.items() if not n.startswith(_OF_IMAGES)})


def _path(workspace: Workspace, facts: Mapping[str, Any]) -> Path:
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return workspace.cache / Part.PROGRAMS / key
