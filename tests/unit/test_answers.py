"""The rows of the site's table say what `pick` says, for each GPU, driver and platform."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from torch_images.config.image import ImageSpec
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.locks.image_lock import compat_versions
from torch_images.pick import answers, gpus, pick
from torch_images.pick.answers import NEWER, OLDER, Row
from torch_images.pick.drivers import find_driver
from torch_images.platforms import AMD64, ARM64, PLATFORMS
from torch_images.verify.ledger import State

# An image's name and proof; None where none works.
Answer = tuple[str, str] | None


def proof(spec: ImageSpec) -> State:
    return State(tested=True, words=f"tested as {spec.id}")


@pytest.fixture(scope="module")
def compat(config: Config, root: Path) -> answers.Compat:
    return {platform: compat_versions(config, root / "locks", platform) for platform in PLATFORMS}


@pytest.fixture(scope="module")
def rows(config: Config, compat: answers.Compat) -> list[Row]:
    return list(answers.rows(config, compat, namespace="ghcr.io/me", state=proof))


@pytest.fixture(scope="module")
def picked(config: Config, compat: answers.Compat) -> Callable[[str, str, str], Answer]:
    """What the verb `pick` answers, in short."""

    def ask(gpu: str, driver: str, platform: str) -> Answer:
        try:
            model = gpus.find_gpu(config, gpu)
            host = gpus.host_platform(config, model, platform)
            known = find_driver(config, driver)
            suggestions = pick.pick(
                *(config, model, known.version),
                lambda cuda: compat[host][cuda.version],
                variant=config.defaults.variant,
                platform=host,
                namespace="ghcr.io/me",
                state=proof,
            )
            answer = pick.answer(config, model, known, suggestions, platform=host)
        except UsageError:
            return None
        return answer["image"], answer["proof"]

    return ask


def test_rows_agree_with_pick(
    rows: list[Row], config: Config, picked: Callable[[str, str, str], Answer]
) -> None:
    """Of a branch, for its first driver and its last; also of drivers before and after all."""
    for row in rows:
        platforms = [row.platform] if row.platform else config.names("platform")
        for branch in row.branches or (OLDER, "525", "580", NEWER):
            edge_drivers = {OLDER: ("390", "418.1"), NEWER: ("621", "660.10")}
            drivers = edge_drivers.get(branch, (branch, f"{branch}.999"))
            for gpu, driver, platform in itertools.product(row.gpus, drivers, platforms):
                expected = (row.image, row.proof) if row.image else None
                assert picked(gpu, driver, platform) == expected, (gpu, driver, platform)


def test_rows_once_per_gpu_platform_and_branch(
    rows: list[Row], config: Config, compat: answers.Compat
) -> None:
    gpu_names = {name for a in config.architectures for name in (*a.gpus, *a.geforce)}
    gpu_names |= {name for _, names in config.other_gpus for name in names}
    assert gpu_names == {name for row in rows for name in row.gpus}
    branches = (OLDER, *answers.branches(config, compat), NEWER)
    for name, platform, branch in itertools.product(gpu_names, config.names("platform"), branches):
        matches = [
            row
            for row in rows
            if name in row.gpus
            and row.platform in ("", platform)
            and (not row.branches or branch in row.branches)
        ]
        foreign = name in config.arm64_gpus and platform == AMD64.name
        assert len(matches) == (0 if foreign else 1), (name, platform, branch)


def test_branches_of_hosts_and_libraries(config: Config, compat: answers.Compat) -> None:
    newer = {**compat, ARM64: {**compat[ARM64], "12.8": "630.10"}}
    assert {*answers.branches(config, newer)} - {*answers.branches(config, compat)} == {"630"}
    assert {"470", "525", "595", "610", "615", "620"} <= {*answers.branches(config, compat)}


def test_rows_of_a_platform_without_images(config: Config, compat: answers.Compat) -> None:
    rows = tuple(row for row in config.catalogue if not row.platform)
    amd64 = replace(config, platforms=(AMD64,), catalogue=rows)
    table = answers.rows(amd64, compat, namespace="x/y", state=proof)
    [row] = [row for row in table if row.platform == ARM64.name and "GH200" in row.gpus]
    assert (row.branches, row.image) == ((), "")
    assert row.way.startswith("no image is built for linux/arm64")
