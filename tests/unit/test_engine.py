"""What the engine's answers become, without an engine."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import docker.errors

from torch_images.host.engine import Engine
from torch_images.host.image_info import ListedImage


def engine_with(**api: Any) -> Engine:
    """An engine whose API answers so."""
    return Engine(cast("Any", SimpleNamespace(api=SimpleNamespace(**api))))


def missing(name: str) -> docker.errors.NotFound:
    """What moby 26.1 says for the whole list when an image goes while it answers."""
    return docker.errors.NotFound(
        "404 Client Error", explanation=f"failed to get rootfs of image {name}: not found"
    )


def test_listed_repeats_when_an_image_is_removed_meanwhile() -> None:
    calls: list[str] = []

    def images() -> list[dict[str, Any]]:
        calls.append("try")
        if len(calls) % 3:
            raise missing("gone:1")
        return [{"Id": "one", "RepoTags": ["a:1", "<none>:<none>"], "Labels": None}]

    engine = engine_with(images=images)
    assert engine.listed() == (ListedImage(id="one", tags=("a:1",), labels={}),)
    assert len(calls) == 3  # not each image, which takes milliseconds


def test_details_skip_an_image_that_vanished() -> None:
    """Moby names the content that is gone, so docker-py's error is not that of a missing image."""

    def inspect(name: str) -> dict[str, Any]:
        if name == "one":
            raise missing(name)
        return {"Metadata": {"LastTagTime": "2026-11-21T10:00:00.123456789Z"}}

    engine = engine_with(
        inspect_image=inspect,
        history=lambda _: [{"Size": 3}, {"Size": 4}],
        containers=lambda **_: [{"ImageID": "two"}],
    )
    one, two = (ListedImage(id=name, tags=(), labels={}) for name in ("one", "two"))
    [details] = engine.details([one, two])
    assert (details.id, details.size, details.in_use) == ("two", 7, True)
    assert details.tagged == datetime(2026, 11, 21, 10, 0, 0, 123456, tzinfo=UTC)
