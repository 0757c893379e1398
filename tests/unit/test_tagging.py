"""Which tags images get, and that floating ones only move forward."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.unit.conftest import M128, M130, T128, T130
from tests.unit.fakes import plan_of
from torch_images.build import labels
from torch_images.build.context_file import ContextFile
from torch_images.build.plan import plan_images, version
from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec
from torch_images.config.matrix import matrix, sisters
from torch_images.config.tags import floating
from torch_images.config.types import Config, Row
from torch_images.errors import UsageError
from torch_images.publish.tag_rules import (
    MOVES,
    NEW,
    STAYS,
    THERE,
    Manifest,
    TagTarget,
    move,
    namespace,
)


@pytest.mark.parametrize(
    ("axes", "tags"),
    [
        # "latest" is the image that starts on more hosts, where the catalogue has it.
        ({}, f"{T130} {M130}"),
        ({"compat": "with"}, f"{T130}-compat {M130}-compat compat latest"),
        ({"torch": "2.12.1", "compat": "with"}, "2.12.1-compat 2.12-compat"),
        ({"torch": "2.12.1"}, "2.12.1 2.12"),
        ({"arch": "12.0"}, f"{T130}-sm120 {M130}-sm120 sm120"),
        (
            {"arch": "12.0", "variant": "devel", "base": "bookworm"},
            f"{T130}-sm120-devel-bookworm {M130}-sm120-devel-bookworm sm120-devel-bookworm",
        ),
        # bookworm is the base of CUDA 12.8
        ({"cuda": "12.8"}, f"{T128} {M128}"),
        ({"cuda": "12.8", "base": "trixie"}, f"{T128}-trixie {M128}-trixie trixie"),
        ({"variant": "pod"}, f"{T130}-pod {M130}-pod pod"),
        (
            {"variant": "pod", "compat": "with"},
            f"{T130}-pod-compat {M130}-pod-compat pod-compat",
        ),
        ({"platform": "linux/arm64"}, f"{T130} {M130} latest"),
        # Its extra adds a release, which no other image has.
        ({"variant": "vllm"}, "2.14.0-vllm 2.14-vllm vllm"),
        # Not in the catalogue: one has no tag of a newer image of its kind that is listed.
        ({"arch": "9.0,12.0"}, f"{T130}-sm90_sm120 {M130}-sm90_sm120 sm90_sm120"),
        ({"torch": "2.12.1", "arch": "9.0"}, "2.12.1-sm90 2.12-sm90"),
        ({"torch": "2.12.1", "arch": "9.0,12.0"}, "2.12.1-sm90_sm120 2.12-sm90_sm120 sm90_sm120"),
    ],
    ids=str,
)
def test_floating_tags(config: Config, axes: dict[str, str], tags: str) -> None:
    """Whoever types no tag gets what `invoke build` makes with nothing else asked for."""
    assert floating(config, choose(config, **axes)) == tuple(tags.split())


def test_only_the_newest_release_of_a_minor_version_has_its_tag(config: Config) -> None:
    """The newest by number, 2.14.10 after 2.14.9, and never a night's build."""
    added = (f"{M130}.9", f"{M130}.10", "2.99.0.dev20261120")
    cudas = tuple(
        dataclasses.replace(c, torch=(*c.torch, *added)) if c.version == "13.0" else c
        for c in config.cudas
    )
    config = dataclasses.replace(config, cudas=cudas)

    def tags(torch: str) -> tuple[str, ...]:
        return floating(config, choose(config, torch=torch))

    assert tags(f"{M130}.9") == (f"{M130}.9",)
    assert tags(f"{M130}.10") == (f"{M130}.10", M130)
    assert tags(added[2]) == added[2:]


def test_floating_keeps_latest_for_the_newest_torch(config: Config) -> None:
    rows = [row for row in config.catalogue if not row.compat]
    row = Row(cuda=("13.0",), torch=("2.12.1",), compat=("with",))
    older = dataclasses.replace(config, catalogue=(*rows, row))
    assert floating(older, choose(older)) == (T130, M130, "latest")
    compat = choose(older, torch="2.12.1", compat="with")
    assert floating(older, compat) == ("2.12.1-compat", "2.12-compat", "compat")


def test_floating_tags_are_unique_per_platform(config: Config) -> None:
    """Those for several platforms do, and their tags name an index."""
    images: dict[tuple[str, str], list[ImageSpec]] = {}
    for spec in matrix(config):
        for tag in floating(config, spec):
            assert "arm64" not in tag
            images.setdefault((spec.repository, tag), []).append(spec)
    for (_, tag), specs in images.items():
        assert len({spec.platform for spec in specs}) == len(specs)
        assert tag == "latest" or len({spec.compat for spec in specs}) == 1
        for spec in specs:
            assert {one for one in specs if one != spec} <= set(sisters(config, spec))


def test_version_names_locks_and_context(config: Config, root: Path) -> None:
    image = plan_of(config, root, arch="12.0")
    tag = version(config, image)
    assert tag == f"{T130}-sm120-runtime-{image.identity[:12]}"
    spec = choose(config, arch="12.0", base="bookworm", compat="with")
    [other] = plan_images(config, [spec], root, root / "locks")
    end = f"bookworm-compat-{other.identity[:12]}"
    assert version(config, other) == f"{T130}-sm120-runtime-{end}"
    changed = (*image.context.files[1:], ContextFile(path="Dockerfile", data=b"FROM scratch"))
    context = dataclasses.replace(image.context, files=changed)
    assert version(config, dataclasses.replace(image, context=context)) != tag


def target(digest: str, torch: str, *days: str) -> TagTarget:
    """An image, or an index of images for several platforms, by the days of their inputs."""
    platforms = ("linux/amd64", "linux/arm64")
    parsed = labels.read({"io.github.torch-images.torch": torch})
    images = tuple(
        Manifest(platform=platform, digest=f"{digest} {platform} {day}", created=day, labels=parsed)
        for platform, day in zip(platforms, days, strict=False)
    )
    return TagTarget(digest=digest, manifests=images)


OURS = target("a", "2.11.0", "2026-11-02")


@pytest.mark.parametrize(
    ("current", "state"),
    [
        (None, NEW),
        (OURS, THERE),
        (target("b", "2.10.9", "2026-11-02"), MOVES),
        (target("b", "2.9.1", "2026-11-02"), MOVES),  # numbers, not letters
        (target("b", "", "2026-11-03"), MOVES),  # not this project's
        (target("b", "2.11.1", "2026-01-01"), STAYS),
        (target("b", "2.11.0", "2026-11-01"), MOVES),
        (target("b", "2.11.0", "2026-11-03"), STAYS),
        (target("b", "2.11.0", "2026-11-02"), MOVES),  # of one day, the one that is pushed
    ],
)
def test_move_only_forward(current: TagTarget | None, state: str) -> None:
    assert move("r/o/t:sm120", OURS, current).state == state


@pytest.mark.parametrize(
    ("ours", "current", "state"),
    [
        (("2", "3"), ("2", "2"), MOVES),
        (("2", "2"), ("2", "3"), STAYS),
        (("1", "3"), ("2", "2"), STAYS),  # one platform forward, another one back
        (("2", "2"), ("2",), MOVES),
        (("2",), ("2", "2"), STAYS),
    ],
)
def test_move_of_an_index_by_platform(
    ours: tuple[str, ...], current: tuple[str, ...], state: str
) -> None:
    assert move("r/o/t:x", target("a", "2.1", *ours), target("a", "2.1", *current)).state == state


def test_namespace_of_valid_and_invalid_names(config: Config) -> None:
    for text in ("ghcr.io/me", "127.0.0.1:5000", "localhost:5000/a/b", "docker.io/me/", ""):
        assert namespace(config, text) == (text.rstrip("/") or "ghcr.io/torch-images")
    assert namespace(config, "GHCR.io/MyOrg") == "ghcr.io/myorg"
    for text in ("ghcr.io", "me:pass@ghcr.io/me", "https://ghcr.io/me", "g x/x"):
        with pytest.raises(UsageError, match="is not a registry to publish to") as caught:
            namespace(config, text)
        assert "pass" not in str(caught.value)
