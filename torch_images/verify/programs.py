"""Whether the project's programs were tested with the torch and the Python of an image.

What tests/programs checks is equal in all images with the same torch, Python and system, so it runs
once for each of them. A passed run leaves a record in the cache, and in the ledger with the image's
line. An image without either, e.g. that of a fork's torch or of another Python, runs it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch_images.host.cache import Part, used, write
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
_TEST = re.compile(r"tests/(?:container|programs)/(test_\w+\.py)")
# Programs that run before the command, and commands: a module runs them if it names this one.
_AT_START = re.compile(r"scripts/image/(?:commands/|runtime/[^/]+$)")
_ENTRYPOINT = b"entrypoint"


class Records:
    """The records of the modules of tests/programs that passed, for an image with a claim.

    `identity` stands for all modules and what they run, with the image's torch, Python and system.
    `passed` are the identities for which the ledger says that all passed.
    """

    def __init__(
        self,
        workspace: Workspace,
        claim: Mapping[str, Any],
        machine: Platform,
        passed: Collection[str] = (),
    ) -> None:
        facts = {name: claim[name] for name in ("torch", "python", "system", "platform")}
        facts["packages"] = {n: v for n, v in claim["packages"].items() if n in _PACKAGES}
        # Two trees of one version are two torches.
        facts["sources"] = {n: t for n, t in claim["locks"].items() if n.startswith("source-")}
        own, others = facts, []
        if claim["platform"] != machine.name:
            # An emulator skips checks: its run proves nothing for a real processor. It takes eight
            # minutes, and these programs have no machine code of their own.
            own, others = facts | {"emulated": True}, [facts, facts | {"platform": machine.name}]
        modules = _modules(workspace.root)
        self.identity = _identity(own, modules)
        self._passed = not {_identity(each, modules) for each in (own, *others)}.isdisjoint(passed)
        self._own = {name: _path(workspace, own, files) for name, files in modules.items()}
        self._others = {
            name: [_path(workspace, other, files) for other in others]
            for name, files in modules.items()
        }

    def missing(self) -> tuple[str, ...]:
        """The modules without a record; for an emulated image, one of either platform counts."""
        if self._passed:
            return ()
        return tuple(
            name
            for name, own in self._own.items()
            if not any(used(path) for path in (own, *self._others[name]) if path.exists())
        )

    def keep(self, module: str, digest: str) -> None:
        """Record that a module passed in an image."""
        write(self._own[module], f"{digest}\n")


def _modules(root: Path) -> dict[str, str]:
    """The hash of the files that matter for each module of tests/programs."""
    files = files_below(PACKAGE.parent, "torch_images/inside")
    files |= {n: data for folder in _SHARED for n, data in files_below(root, folder).items()}
    tests = {name: found[1] for name in files if (found := _TEST.fullmatch(name))}
    shared = {name: data for name, data in files.items() if name not in tests}
    inner = {name: data for name, data in shared.items() if not _AT_START.match(name)}
    return {
        test: files_hash({**(shared if _ENTRYPOINT in files[name] else inner), name: files[name]})
        for name, test in tests.items()
        if name.startswith("tests/programs/")
    }


def _path(workspace: Workspace, facts: Mapping[str, Any], files: str) -> Path:
    return workspace.cache / Part.PROGRAMS / _hash({**facts, "files": files})


def _identity(facts: Mapping[str, Any], modules: Mapping[str, str]) -> str:
    return _hash({**facts, "modules": modules})[:16]


def _hash(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
