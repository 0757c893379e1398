"""Images that the catalogue does not list, and releases that are listed in the wrong place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.conftest import T130
from torch_images.config.choose import choose, choose_id
from torch_images.config.lock_requests import (
    FactsRequest,
    facts_input,
    image_inputs,
)
from torch_images.config.lock_selection import choose_locks, inputs
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.locks.facts import FactsLock, with_facts
from torch_images.locks.files import dumps, read

UNLISTED = "cu130-torch2.12.1-trixie-devel"


def test_choose_locks_by_identifier(config: Config) -> None:
    spec = choose_id(config, UNLISTED)
    names = {item.name for item in image_inputs(config, spec)}
    assert {item.name for item in inputs(config, UNLISTED)} == names
    both = {item.name for item in inputs(config, f"tools-verify,{UNLISTED}")}
    assert both == names | {"tools-verify"}
    others, of_images = choose_locks(config, f"tools-verify,{UNLISTED}")
    assert ([*others], {*of_images}) == (["tools-verify"], names)
    with pytest.raises(UsageError, match="unknown variant 'devl'; did you mean 'devel'"):
        inputs(config, "cu130-torch2.12.1-trixie-devl")


def facts_request(config: Config, image: str) -> FactsRequest:
    return facts_input(config, choose_id(config, image))


def test_inputs_of_an_unlisted_image_pin_its_companions(config: Config) -> None:
    [wheels] = inputs(config, "wheel-cu128-torch2.10.0-py311-pod")
    assert "torchvision==0.25.0" in wheels.request


def locked(folder: Path, lock: FactsLock) -> None:
    (folder / f"{lock.name}.json").write_text(dumps(lock))


def test_the_facts_of_an_unlisted_release_are_known(
    config: Config, root: Path, tmp_path: Path
) -> None:
    """An older release on a base that only the newest one is listed for."""
    image = "cu130-torch2.12.1-bookworm-runtime"
    lock = read(FactsLock, facts_request(config, UNLISTED).path(root / "locks"))
    facts = replace(lock.facts, python="3.11")
    name = facts_request(config, image).name
    locked(tmp_path, replace(lock, name=name, facts=facts))
    assert choose_id(config, image).release.facts is None
    assert choose_id(with_facts(config, tmp_path), image).release.facts == facts


def test_an_architecture_without_code_of_its_own_has_no_image_of_its_own(config: Config) -> None:
    """On Arm, torch has code for 8.0 and none for 8.6: the two images would be one."""
    with pytest.raises(UsageError) as caught:
        choose(config, arch="8.6", platform="linux/arm64")
    assert str(caught.value) == (
        f"torch {T130} has no kernel for 8.6 itself, which runs the code for 8.0; "
        "give that architecture, or none: the files are the same"
    )
    assert choose(config, arch="8.0", platform="linux/arm64").arch_list == ("sm_80",)
    assert "8.6" in choose(config, platform="linux/arm64").arches
    for arch in ("8.6", "8.9"):  # each has kernels of its own there
        assert choose(config, arch=arch, platform="linux/amd64").arches == (arch,)
