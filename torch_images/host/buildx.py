"""Facts about `docker buildx` and its builders."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass

from torch_images.errors import EngineError, TorchImagesError
from torch_images.host.runner import Runner

# buildx 0.13 has "Parent: a" or "Parents: a,b", and 0.29 a list of lines that begin with " - ".
_FACT = r"^(ID|Parents?|Description):[ \t]*((?:\n[ ]+- .*)+|\S.*)$"


@dataclass(frozen=True)
class Record:
    """An entry of BuildKit's cache, and the entries that it builds on.

    `step` describes what made it: "mount / from exec /bin/sh -c /run/..." for a RUN, "" for a layer
    of an image that a build began with.
    """

    id: str
    parents: tuple[str, ...]
    step: str


def cache_records(run: Runner, builder: str = "") -> tuple[Record, ...]:
    """The cache of a builder, by default buildx's current one."""
    listed = run.run(["docker", "buildx", "du", "--verbose", *_builder_option(builder)]).output
    records = []
    for text in re.split(r"^(?=ID:)", listed, flags=re.MULTILINE)[1:]:
        facts: dict[str, str] = dict(re.findall(_FACT, text, re.MULTILINE))
        parents = facts.get("Parents", facts.get("Parent", ""))
        records.append(
            Record(
                id=facts["ID"],
                parents=tuple(re.findall(r"[^\s,-]+", parents)),
                step=facts.get("Description", ""),
            )
        )
    return tuple(records)


def forget(ids: Collection[str], run: Runner, builder: str = "") -> None:
    """Remove entries of a builder's cache, without those in use."""
    words = ["--force", "--filter", f"id={'|'.join(sorted(ids))}", *_builder_option(builder)]
    run.run(["docker", "buildx", "prune", *words])


def remove_mounts(namespace: str, run: Runner, builder: str) -> None:
    """Remove the cache mounts of a namespace, which no later build would use."""
    ids = [each.id for each in cache_records(run, builder) if namespace in each.step]
    if ids:
        forget(ids, run, builder)


def _builder_option(builder: str) -> list[str]:
    return [f"--builder={builder}"] if builder else []


def check_buildx(run: Runner) -> None:
    """Raise EngineError unless the docker CLI has buildx."""
    done = shutil.which("docker") and run.run(["docker", "buildx", "version"], check=False)
    if done and done.code and "Error loading config file" in done.errors:
        problem = done.errors.partition("\n")[0].removeprefix("WARNING: ")
        raise EngineError(f"docker: {problem}", "set HOME or DOCKER_CONFIG to a folder")
    if not done or done.code:
        raise EngineError(
            "docker buildx is not installed",
            "install docker-buildx (Debian, Ubuntu) or docker-buildx-plugin (Docker's packages)",
        )


def is_remote(builder: str, run: Runner) -> bool:
    """Whether a buildx builder is not the engine itself, so that images must be loaded from it.

    Raises EngineError for a builder that is unknown or does not answer, and if buildx is missing.
    """
    command = ["docker", "buildx", "inspect", *([builder] if builder else [])]
    try:
        described = run.run(command).output
    except TorchImagesError:  # also if docker is missing
        check_buildx(run)
        raise EngineError(f"no builder '{builder}'", "see `docker buildx ls`") from None
    facts = dict(re.findall(r"^(Driver|Endpoint|Error):[ \t]*(\S.*)$", described, re.MULTILINE))
    if "Error" in facts:
        raise EngineError(f"builder '{builder or 'default'}' does not answer: {facts['Error']}")
    if facts.get("Driver") != "docker":
        return True
    return facts.get("Endpoint") != run.run(["docker", "context", "show"]).output.strip()
