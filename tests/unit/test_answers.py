"""The table of answers says what `pick` says, cell by cell; also for a platform."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_images.config.matrix import ImageSpec, matrix
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.locks.image_lock import compat_versions
from torch_images.platforms import AMD64, PLATFORMS, Platform
from torch_images.publish import answers, gpus, pick
from torch_images.publish.ledger import State

Ask = Callable[..., dict[str, Any]]
NAMES = tuple(platform.name for platform in PLATFORMS)
Compat = dict[Platform, dict[str, str]]


def proof(spec: ImageSpec) -> State:
    return State(proved=True, words=f"proved as {spec.id}")


@pytest.fixture(scope="module")
def compat(config: Config, root: Path) -> Compat:
    return {platform: compat_versions(config, root / "locks", platform) for platform in PLATFORMS}


@pytest.fixture(scope="module")
def table(config: Config, compat: Compat) -> dict[str, Any]:
    states = {spec: proof(spec) for spec in matrix(config)}
    made = answers.table(config, compat, namespace="ghcr.io/me", states=states)
    # As it travels: a key that is no text would change on the way.
    restored: dict[str, Any] = json.loads(json.dumps(made))
    assert restored == made
    return made


@pytest.fixture(scope="module")
def asked(config: Config, compat: Compat) -> Ask:
    """What the verb `pick` answers, without the list of others of a refusal."""

    @cache
    def ask(gpu: str, driver: str, torch: str, base: str, variant: str, platform: str) -> Any:
        try:
            model = gpus.find_gpu(config, gpu)
            version = pick.find_driver(config, driver)
            host = gpus.host_platform(config, model, platform)
            suggestions = pick.pick(
                *(config, model, version),
                lambda cuda: compat[host][cuda.version],
                torch=torch,
                base=base,
                variant=variant or config.defaults.variant,
                platform=host,
                namespace="ghcr.io/me",
                state=proof,
            )
            branch = driver if driver != version else ""
            return pick.answer(model, version, suggestions, platform=host, branch=branch)
        except UsageError as error:
            return {"problem": str(error)}

    def call(
        gpu: str,
        driver: str,
        torch: str = "",
        base: str = "",
        variant: str = "",
        platform: str = "",
    ) -> dict[str, Any]:
        found: dict[str, Any] = ask(gpu, driver, torch, base, variant, platform)
        return found

    return call


def told(table: dict[str, Any], gpu: str, driver: str, *rest: str) -> dict[str, Any]:
    names = ("torch", "base", "variant", "platform")
    found = answers.look_up(table, gpu=gpu, driver=driver, **dict(zip(names, rest, strict=False)))
    if "problem" in found:
        found.pop("others", None)
    return found


def drivers(table: dict[str, Any]) -> list[str]:
    """One on each mark, one between each two, and each branch that has a name of its own."""
    marks = [mark for mark in table["drivers"]["marks"] if mark != "0.0"]
    whole = 3
    between = [f"{mark}.7" if mark.count(".") < whole - 1 else mark[:-1] + "9" for mark in marks]
    return ["100.10", *marks, *between, *table["drivers"]["branches"], "199", "999"]


def test_every_verdict_is_that_of_pick(table: dict[str, Any], asked: Ask) -> None:
    shown = {g["asked"] for g in table["gpus"]}
    one_of_each = {
        (g.get("kind", g["asked"]), g.get("platform")): g["asked"] for g in table["gpus"]
    }.values()
    cells = itertools.product(one_of_each, drivers(table), ("", *NAMES))
    others = itertools.product(shown, ("550", "570.133", "580", "600.10"), ("", *NAMES))
    for gpu, driver, platform in (*cells, *others):
        cell = gpu, driver, "", "", "", platform
        assert told(table, *cell) == asked(*cell), cell


def test_every_image_is_that_of_pick(table: dict[str, Any], asked: Ask, config: Config) -> None:
    one_of_each = {a.name: next(iter((*a.gpus, *a.geforce))) for a in config.architectures}
    axes = (config.names(axis) for axis in ("torch", "base", "variant"))
    torch, base, variant = axes
    served = set()
    cells = itertools.product(one_of_each.values(), ("", *torch), base, variant, NAMES)
    for gpu, *rest in cells:
        for driver in ("580.95.05", "600.10"):
            found = told(table, gpu, driver, *rest)
            assert found == asked(gpu, driver, *rest), (gpu, driver, rest)
            served.add(found.get("id"))
    single = {s.id for s in matrix(config) if not s.every_arch and not s.source.compiled}
    assert served - {None} == single


def test_every_platform_is_that_of_pick(table: dict[str, Any], asked: Ask) -> None:
    for entry, platform in itertools.product(table["gpus"], ("", *NAMES)):
        cell = entry["asked"], "580.95.05", "", "", "", platform
        assert told(table, *cell) == asked(*cell), cell


@given(
    data=st.data(),
    driver=st.from_regex(r"[1-9][0-9]{2}(\.[0-9]{1,3}(\.[0-9]{1,2})?)?", fullmatch=True),
)
def test_any_question(
    table: dict[str, Any], asked: Ask, config: Config, data: st.DataObject, driver: str
) -> None:
    gpu = data.draw(st.sampled_from([entry["asked"] for entry in table["gpus"]]))
    axes = (("", *config.names(axis)) for axis in ("torch", "base", "variant"))
    chosen = [data.draw(st.sampled_from(values)) for values in axes]
    cell = gpu, driver, *chosen, data.draw(st.sampled_from(("", *NAMES)))
    assert told(table, *cell) == asked(*cell), cell


def test_what_stands_for_a_name_is_no_part_of_another(table: dict[str, Any]) -> None:
    """A name with braces, were there one, would be said as it is."""
    kind = next(gpu["kind"] for gpu in table["gpus"] if gpu["asked"] == "H100")
    held = dict(table, gpus=[{"asked": "X", "name": "{driver} {gpu}", "kind": kind}])
    found = answers.look_up(held, gpu="X", driver="600.10")
    assert found["why"][0].startswith("{driver} {gpu} is compute capability")


def test_others_are_told_where_none_works(table: dict[str, Any]) -> None:
    found = answers.look_up(table, gpu="RTX 4090", driver="470.82")
    assert found["problem"].startswith("no image runs on GeForce RTX 4090 with driver 470.82")
    assert {other["works"] for other in found["others"]} == {False}
    assert [other["why"] for other in found["others"]]


def test_all_gpus_of_images_yaml_are_there(table: dict[str, Any], config: Config) -> None:
    names = [entry["asked"] for entry in table["gpus"]]
    for architecture in config.architectures:
        assert {*architecture.gpus, *architecture.geforce, architecture.name} <= set(names)
    for other in config.other_gpus:
        assert {*other.names, str(other.capability)} <= set(names)
    assert {"T4", "V100", "12.1", "7.5"} <= set(names)
    assert len(names) == len(set(names))


def test_a_base_decides_on_python_and_name(asked: Ask) -> None:
    found = asked("H100", "580.95.05", "", "trixie")
    assert found["image"].endswith("-sm90-trixie")
    assert found["id"].endswith("-trixie-runtime")
    assert asked("H100", "580.95.05", "", "trixy") == {
        "problem": "unknown base 'trixy'; did you mean 'trixie'? known: bookworm, trixie, ubuntu24.04"
    }
    left_out = asked("H100", "575.10", "", "trixie", "devel")
    assert all("cu128" not in other["image"] for other in left_out["others"])


def test_a_platform_has_proofs_of_its_own(asked: Ask) -> None:
    plain, arm = (asked("H100", "580.95.05", platform=name) for name in NAMES)
    assert plain["proof"] == f"proved as {plain['id']}"
    assert arm["proof"] == f"proved as {plain['id']}-arm64"
    assert plain["image"] == arm["image"]


def test_the_table_is_small(table: dict[str, Any]) -> None:
    """A browser reads it as a part of the page: 158 507 bytes on 2026-11-25, of 555 images."""
    assert len(json.dumps(table, separators=(",", ":"))) < 400 * len(table["proofs"])


def test_without_images_for_a_platform_the_table_says_so(config: Config, compat: Compat) -> None:
    fewer = replace(config, platforms=(AMD64,))
    made = answers.table(fewer, compat, namespace="x/y", states={})
    for asked in ({"gpu": "GH200"}, {"gpu": "H100", "platform": "linux/arm64"}):
        assert answers.look_up(made, driver="580", **asked) == {
            "problem": "no image is built for linux/arm64; the platforms of images.yaml are "
            "linux/amd64"
        }


def test_a_capability_of_other_hosts_too_is_not_refused(config: Config) -> None:
    """GB300 has an Arm host, B300 has not; nobody knows which one "10.3" is."""
    assert not gpus.find_gpu(config, "10.3").arm64
    assert gpus.find_gpu(config, "12.1").arm64
    assert not gpus.find_gpu(replace(config, arm64_gpus=()), "12.1").arm64
    assert not gpus.find_gpu(config, "8.7").arm64  # images.yaml names no GPU of it


def test_a_newer_compat_library_moves_the_marks(config: Config, compat: Compat) -> None:
    """The branch that a library itself is of counts, too."""
    none = {platform: dict.fromkeys(versions, "") for platform, versions in compat.items()}
    without = answers.table(config, none, namespace="x/y", states={})
    assert "565.0" in without["drivers"]["marks"]
    for platform in PLATFORMS:
        newer = {**compat, platform: {**compat[platform], "12.8": "590.10"}}
        later = answers.table(config, newer, namespace="x/y", states={})
        assert {"590.0", "591.0"} <= set(later["drivers"]["marks"])
    fewer = replace(config, cudas=config.cudas[:1])
    alone = answers.table(fewer, compat, namespace="x/y", states={})
    assert "595.45.04" not in alone["drivers"]["marks"]
