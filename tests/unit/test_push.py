"""Retries, and what is made of a registry's words; the rest is in tests/integration."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.fakes import FakeRunner
from torch_images.errors import NetworkError, TorchImagesError, UsageError
from torch_images.publish.push import Transfer
from torch_images.publish.registry import has_host, lookup, problem, published, retry

NAME = "ghcr.io/me/torch-cu130:sm120"
INSPECT = "docker buildx imagetools inspect --format"
# What buildx says of a published image, by the words that it is asked with.
DESCRIBED = {
    INSPECT: (
        0,
        f'{{"manifest": {{"digest": "sha256:{"a" * 64}"}}, "image": {{"config": {{"Labels": '
        '{"io.github.torch-images.torch": "2.11.0", '
        '"io.github.torch-images.compat": "580.95.05-0ubuntu1"}}}}',
    ),
    "docker buildx imagetools inspect --raw": (
        0,
        '{"config": {"digest": "x"}, "layers": [{"digest": "y", "size": 3}, '
        '{"digest": "z", "size": 4}]}',
    ),
}


class Failing:
    """Fails as often as it is told, getting on with some of the attempts."""

    def __init__(self, *gets_on: bool) -> None:
        self.gets_on = list(gets_on)
        self.done = 0

    def __call__(self) -> str:
        if not self.gets_on:
            return "done"
        self.done += self.gets_on.pop(0)
        raise NetworkError("broken")


def tried(failing: Failing, retries: int) -> tuple[str, list[float]]:
    waits: list[float] = []
    try:
        found = retry(
            failing,
            retries=retries,
            say=lambda _: None,
            progress=lambda: failing.done,
            sleep=waits.append,
        )
    except NetworkError as error:
        found = error.message
    return found, waits


def test_waits_grow_and_end() -> None:
    assert tried(Failing(*[False] * 3), 3) == ("done", [1, 2, 4])
    assert tried(Failing(*[False] * 4), 3) == ("broken", [1, 2, 4])
    assert tried(Failing(*[False] * 9), 9)[1][-1] == 60


def test_whoever_gets_on_may_go_on() -> None:
    assert tried(Failing(*[False, True] * 5), 2) == ("done", [1, 1] + [2, 1] * 4)


def test_a_refusal_is_not_repeated() -> None:
    def refused() -> None:
        raise UsageError("no")

    with pytest.raises(UsageError):
        retry(refused, retries=9, say=lambda _: None, sleep=lambda _: pytest.fail("waited"))


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("status from PUT request to http://h/v2: 401 Unauthorized", UsageError, "login"),
        ("denied: permission_denied: write_package", UsageError, "docker login ghcr.io"),
        ("status from HEAD request to http://h/v2: 403 Forbidden", UsageError, "login"),
        ("status from PUT request: 500 Internal Server Error", NetworkError, "again later"),
        ("unexpected status from PUT request: 429 Too Many Requests", NetworkError, "again later"),
        ("write tcp 127.0.0.1:404->127.0.0.1:403: connection reset by peer", NetworkError, "later"),
        ("failed commit on ref: unexpected EOF", NetworkError, "again later"),
        ("dial tcp: lookup ghcr.oi: no such host", NetworkError, "check its name"),
        ("x509: certificate signed by unknown authority", UsageError, "x509"),
        ("error getting credentials - err: 1, out: `my-password`", UsageError, "see credsStore"),
    ],
)
def test_words_of_a_registry(text: str, kind: type[TorchImagesError], said: str) -> None:
    found = problem(NAME, text)
    assert type(found) is kind
    assert said in str(found)
    assert "my-password" not in str(found)


def test_who_holds_a_name() -> None:
    inspect = "docker buildx imagetools inspect"
    answer = (
        f'{{"manifest": {{"digest": "sha256:{"a" * 64}"}}, '
        '"image": {"created": "2026-11-02T00:00:00Z", '
        '"config": {"Labels": {"io.github.torch-images.torch": "2.11.0"}}}}'
    )
    found = lookup(NAME, FakeRunner({inspect: (0, answer)}))
    assert found
    assert (found.digest, found.torch, found.created) == (
        *(f"sha256:{'a' * 64}", "2.11.0", "2026-11-02"),
    )
    assert lookup(NAME, FakeRunner({inspect: (1, f"ERROR: {NAME}: not found\n")})) is None
    with pytest.raises(NetworkError, match=r"ghcr.io could not be reached: connection refused"):
        lookup(NAME, FakeRunner({inspect: (1, "ERROR: connection refused")}))


def test_which_names_are_a_registrys() -> None:
    digest = f"sha256:{'a' * 64}"
    for image in ("ghcr.io/me/x:sm120", "127.0.0.1:5000/me/torch-cu130", "localhost/torch-cu130"):
        assert has_host(image)
    for image in (
        *("torch-cu130:sm120", "me/torch-cu130:sm120", "cu130-sm120-torch2.14.1-trixie-runtime"),
        *(digest, f"torch-cu130@{digest}"),
    ):
        assert not has_host(image)


def test_what_a_registry_says_of_a_published_image() -> None:
    found = published(NAME, FakeRunner(DESCRIBED))
    assert (found.digest, found.size) == (f"sha256:{'a' * 64}", 7)
    assert (found.labels.torch, found.labels.compat) == ("2.11.0", "580.95.05-0ubuntu1")
    gone = {INSPECT: (1, f"ERROR: {NAME}: not found\n")}
    with pytest.raises(UsageError, match="is not in its registry"):
        published(NAME, FakeRunner(gone))


def test_a_text_that_is_no_reference_reaches_no_command() -> None:
    for reference in (
        *("ghcr.io/Me/x", "ghcr.io/me/x:", "ghcr.io/me/x@sha256:a", "-a.b/x", "a.b/x y"),
        *("a.b/../x", "a.b/x\n", "ghcr.io/", "me:secret@ghcr.io/x"),
    ):
        with pytest.raises(UsageError, match="is not the name of a published image") as caught:
            published(reference, FakeRunner({}))
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("580.95.05-0ubuntu1", "x", "its compat library is x, which is not a version"),
        ("580.95.05-0ubuntu1", "580", "its compat library is 580, which is not a version"),
        ('"size": 3', '"size": -3', "a layer has an impossible size"),
        ('"size": 3', '"size": 1e3', "'layers[0].size' is not a number"),
        ('"size": 3', f'"size": {10**13}', "a layer has an impossible size"),
        ('"2.11.0"', '"new"', "its torch is new, which is not a version"),
        ("sha256:a", "sha256:/", "is not a digest"),
    ],
)
def test_what_no_registry_should_say_of_an_image(old: str, new: str, said: str) -> None:
    answers = {key: (code, text.replace(old, new)) for key, (code, text) in DESCRIBED.items()}
    assert answers != DESCRIBED
    with pytest.raises(NetworkError) as caught:
        published(NAME, FakeRunner(answers))
    assert said in str(caught.value)


def test_a_transfer_counts_bytes_and_layers() -> None:
    shown: list[tuple[int, int]] = []
    transfer = Transfer(lambda sent, size: shown.append((sent, size)))
    events: list[dict[str, Any]] = [
        {"status": "Pushing", "id": "a", "progressDetail": {"current": 10, "total": 100}},
        {"status": "Pushing", "id": "b", "progressDetail": {"current": 5, "total": 50}},
        {"status": "Layer already exists", "id": "c", "progressDetail": {}},
        {"status": "Pushed", "id": "a", "progressDetail": {}},
        {"status": "tag: digest: sha256:x size: 1"},
    ]
    for event in events:
        transfer(event)
    assert shown == [(10, 100), (15, 150), (15, 150), (105, 150), (105, 150)]
    assert transfer.done == 2
