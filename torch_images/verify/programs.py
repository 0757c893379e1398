"""Whether the project's programs were tested with the torch and the Python of an image.

What tests/programs checks is equal in all images with the same torch, Python and system, so it runs
once for each of them, and again after a change of the programs or of their tests. A passed run
leaves a record in the cache. An image without one, e.g. that of a fork's torch or of another
Python, runs it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_images.host.cache import Part
from torch_images.host.workspace import Workspace
from torch_images.platforms import Platform
from torch_images.project import PACKAGE
from torch_images.verify.suites import files_below, files_hash

# Packages beside torch that tests/programs looks at, where an image has them.
_PACKAGES = ("flash-attn-4", "nvidia-cutlass-dsl", "pip", "setuptools", "triton")
# What the tests share with other checks, and what of ours runs in containers.
_RUNNING = ("attention", "commands", "pod", "runtime")
_SHARED = (
    *("tests/programs", "tests/container", "scripts/bench"),
    *(f"scripts/image/{name}" for name in _RUNNING),
)


def records(workspace: Workspace, claim: Mapping[str, Any], machine: Platform) -> tuple[Path, ...]:
    """The files that record a passed run for an image with a claim; the first is its own."""
    facts = {name: claim[name] for name in ("torch", "python", "system", "platform")}
    facts["packages"] = {n: v for n, v in claim["packages"].items() if n in _PACKAGES}
    # Two trees of one version are two torches.
    facts["sources"] = {n: t for n, t in claim["locks"].items() if n.startswith("source-")}
    facts["files"] = _files(workspace.root)
    if claim["platform"] == machine.name:
        return (_path(workspace, facts),)
    # An emulator skips checks: its run proves nothing for a real processor. It takes eight minutes,
    # and these programs have no machine code of their own, so a run of either platform counts.
    others = facts | {"emulated": True}, facts, facts | {"platform": machine.name}
    return tuple(_path(workspace, one) for one in others)


def _files(root: Path) -> str:
    """The hash of the files that matter: not those of checks that each image passes by itself."""
    files = files_below(PACKAGE.parent, "torch_images/inside")
    files |= {n: data for folder in _SHARED for n, data in files_below(root, folder).items()}
    return files_hash({n: d for n, d in files.items() if not n.startswith("tests/container/test_")})


def _path(workspace: Workspace, facts: Mapping[str, Any]) -> Path:
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return workspace.cache / Part.PROGRAMS / key
