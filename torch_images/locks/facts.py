"""Facts about releases of torch, from inspecting their wheels.

They are beside the locks, one file for each release, CUDA version and Python, so that a reviewer
sees changes. They determine which images exist, but are not in the images.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from torch_images.config.lock_requests import FactsRequest
from torch_images.config.release import Facts
from torch_images.config.types import Config
from torch_images.errors import LockError
from torch_images.locks.files import Lock, Sha256, read


@dataclass(frozen=True, kw_only=True)
class FactsLock(Lock):
    """The content of a file of facts.

    `sha256`: of the inspected wheel of torch.
    """

    sha256: Sha256
    facts: Facts


def with_facts(config: Config, folder: Path) -> Config:
    """The config with all facts that a folder of locks has for it.

    A damaged file is ignored here, so that `lock` can replace it. Images that need it are refused.
    """
    facts = []
    for path in sorted(folder.glob("release-*.json")):
        with contextlib.suppress(LockError):
            facts.append(read(FactsLock, path).facts)
    return replace(config, facts=tuple(facts))


def check_facts(item: FactsRequest, folder: Path, torch: str) -> None:
    """Raise LockError unless the facts of a release exist, and are of the right wheel.

    `torch` is the SHA-256 of its wheel in the lock, in hexadecimal.
    """
    if read(FactsLock, item.path(folder)).sha256 != torch:
        raise LockError(
            f"locks/{item.path(folder).name} is out of step: it is of another wheel of torch than "
            "the lock's",
            f"run `invoke lock --select {item.name}`",
        )
