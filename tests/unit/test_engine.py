"""What the engine's answers become, without an engine."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import docker.errors
import pytest

from torch_images.errors import NetworkError, NoAnswerError, TorchImagesError, UsageError
from torch_images.host.diagnose import REGISTRY, refusal
from torch_images.host.engine import Engine
from torch_images.host.image_info import ListedImage


# The words of moby 26.1 for each case.
@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("manifest for a:1 not found: manifest unknown: manifest unknown", UsageError),
        ("pull access denied for a, repository does not exist or may require login", UsageError),
        ('Get "https://r/v2/": dial tcp: lookup r on 10.0.0.1:53: no such host', NoAnswerError),
        ('Get "https://r/v2/": dial tcp 127.0.0.1:5000: connect: connection refused', NetworkError),
        ("toomanyrequests: You have reached your pull rate limit", NetworkError),
    ],
)
def test_refused_pull_is_a_usage_or_network_error(words: str, kind: type[TorchImagesError]) -> None:
    error = refusal(REGISTRY, words, host="r", reference="r/a:1")
    assert type(error) is kind
    assert str(error).startswith("r ")
    assert words.rsplit(":", maxsplit=1)[-1].strip() in str(error)


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


@pytest.mark.parametrize("present", [False, True])
@pytest.mark.parametrize("name", ["r/a:1", "r/a:1@sha256:0"])
def test_pull_by_digest_may_fail_if_the_engine_has_the_image(name: str, present: bool) -> None:
    """A tag may name another image by now; a digest never does."""

    def pull(repository: str, **words: Any) -> Iterator[dict[str, Any]]:
        assert (repository, words["tag"]) == tuple(name.rsplit("@" if "@" in name else ":", 1))
        yield {"error": "failed to unpack"}

    def inspect(reference: str) -> dict[str, str]:
        if not present:
            raise docker.errors.ImageNotFound(reference)
        return {"Id": "sha256:0"}

    engine = engine_with(pull=pull, inspect_image=inspect)
    if present and "@" in name:
        engine.pull(name)
    else:
        with pytest.raises(NetworkError, match="failed to unpack"):
            engine.pull(name)
