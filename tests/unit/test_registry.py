"""What registries answer through buildx, and what becomes of their refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from tests.loopback import serving
from tests.unit.fakes import FakeRunner
from tests.unit.hostile import ends_well, json_texts
from torch_images.errors import (
    EngineError,
    NetworkError,
    NoAnswerError,
    TorchImagesError,
    UsageError,
)
from torch_images.host.diagnose import of_registry
from torch_images.host.runner import Completed, Runner
from torch_images.publish.registry import (
    exact,
    has_host,
    is_public,
    lookup,
    of_platform,
    pull_size,
    retry,
)

REPOSITORY = "ghcr.io/me/torch-cu130"
NAME = f"{REPOSITORY}:sm120"
AMD64, ARM64 = "linux/amd64", "linux/arm64"
INSPECT = "docker buildx imagetools inspect --format {{json .}} "
RAW = "docker buildx imagetools inspect --raw "
TORCH = "io.github.torch-images.torch"
D1, D2, DX = (f"sha256:{digit * 64}" for digit in "12f")


def image(architecture: str, created: str = "2026-11-02T00:00:00Z") -> dict[str, Any]:
    return {
        "created": created,
        "os": "linux",
        "architecture": architecture,
        "config": {"Labels": {TORCH: "2.14.1"}},
        "history": [{"created_by": "x"}],
    }


def entry(digest: str, architecture: str, system: str = "linux") -> dict[str, Any]:
    return {"digest": digest, "platform": {"os": system, "architecture": architecture}}


# As buildx 0.13.1 prints them.
SINGLE = {"manifest": {"digest": D1, "size": 412}, "image": image("amd64")}
INDEX = {
    "manifest": {
        "digest": DX,
        "manifests": [entry(D1, "amd64"), entry(D2, "arm64"), entry(DX, "unknown", "unknown")],
    },
    "image": {AMD64: image("amd64"), ARM64: image("arm64", "2026-11-01T00:00:00Z")},
}
OF_ONE = {
    "manifest": {"digest": DX, "manifests": [entry(D2, "arm64")]},
    "image": image("arm64"),
}


def answering(document: Any) -> FakeRunner:
    return FakeRunner({INSPECT + NAME: (0, json.dumps(document))})


def changed(path: Sequence[str], value: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(SINGLE))
    at = document
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("document", "digest", "day", "images"),
    [
        (SINGLE, D1, "2026-11-02", [(AMD64, D1)]),
        (INDEX, DX, "2026-11-01", [(AMD64, D1), (ARM64, D2)]),
        (OF_ONE, DX, "2026-11-02", [(ARM64, D2)]),
    ],
)
def test_lookup_has_the_image_of_each_platform(
    document: Any, digest: str, day: str, images: list[tuple[str, str]]
) -> None:
    target = lookup(NAME, answering(document))
    assert target
    assert (target.digest, target.torch, target.created) == (digest, "2.14.1", day)
    assert [(one.platform, one.digest) for one in target.manifests] == images


def test_lookup_of_a_name_that_the_registry_lacks_is_none() -> None:
    assert lookup(NAME, FakeRunner({INSPECT: (1, f"ERROR: {NAME}: not found\n")})) is None


@pytest.mark.parametrize(
    "document",
    [
        [],
        changed(["manifest", "digest"], "sha256:../x"),
        changed(["manifest", "manifests"], [entry(D1, "s390x")]),
        changed(["manifest", "manifests"], [entry(D1, "amd64")] * 101),
        changed(["image", "created"], "yesterday"),
        changed(["image", "architecture"], "\x1b[2J"),
        changed(["image", "config", "Labels"], {TORCH: "1" * 99}),
        {**INDEX, "image": {AMD64: image("amd64"), ARM64: {**image("arm64"), "config": {}}}},
    ],
)
def test_lookup_of_an_invalid_answer_is_one_line(document: Any) -> None:
    with pytest.raises(NetworkError, match="describes ghcr") as caught:
        lookup(NAME, answering(document))
    assert str(caught.value).isprintable()


@given(json_texts(SINGLE), json_texts(INDEX))
def test_lookup_of_any_answer_ends_without_a_traceback(single: str, index: str) -> None:
    for text in (single, index, "[" * 100_000):
        ends_well(lambda text=text: lookup(NAME, FakeRunner({INSPECT: (0, text)})))  # type: ignore[misc]


def test_lookup_does_not_wait_forever() -> None:
    """Nor for a program that a killed one has left, with the pipe in its hands."""

    class Asleep(Runner):
        def run(self, command: Sequence[str], **options: Any) -> Completed:
            assert options["seconds"] <= 60
            return super().run(["sh", "-c", "sleep 20 & wait"], seconds=0.01)

    began = time.monotonic()
    with pytest.raises(NoAnswerError, match="no answer within"):
        lookup(NAME, Asleep())
    assert time.monotonic() - began < 15


class Forbidding(BaseHTTPRequestHandler):
    """A registry that answers 403 to everything, with the code in the path as the reason."""

    def do_GET(self) -> None:
        body = json.dumps({"errors": [{"code": self.path.split("/")[2].upper()}]}).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.parametrize(
    ("code", "lacks"), [("name_unknown", True), ("manifest_unknown", True), ("denied", False)]
)
def test_lookup_of_a_name_that_the_registry_forbids(code: str, lacks: bool) -> None:
    """Some answer 403 for what they lack; only the body, which buildx cannot show, says so."""

    class Buildx(FakeRunner):
        def run(self, command: Sequence[str], **options: Any) -> Completed:
            if command[0] != "docker":
                return Runner().run(command, **options)
            return super().run(command, **options)

    with serving(Forbidding) as url:
        name = f"{url.removeprefix('http://')}/{code}:x"
        for place, told in ((url, lacks), ("http://127.0.0.1:1", False)):
            said = f"unexpected status from HEAD request to {place}/v2/{code}/x: 403 Forbidden\n"
            run = Buildx({INSPECT: (1, f"ERROR: {said}")})
            if told:
                assert lookup(name, run) is None
            else:
                with pytest.raises(UsageError, match="docker login"):
                    lookup(name, run)


def test_lookup_with_a_home_that_is_no_folder_names_it() -> None:
    """Docker then finds no buildx, and its last line is that of its help."""
    said = "unknown flag: --raw\nRun 'docker --help' for more information\n"

    class Docker(FakeRunner):
        def run(self, command: Sequence[str], **options: Any) -> Completed:
            done = super().run(command, **options)
            warning = "WARNING: Error loading config file: open /dev/null/.docker: not a directory"
            return Completed(done.code, done.output, warning)

    run = Docker({INSPECT: (1, said), "docker buildx version": (1, "")})
    with pytest.raises(EngineError, match="not a directory; set HOME or DOCKER_CONFIG"):
        lookup(NAME, run)


@pytest.mark.parametrize(
    "reference",
    [
        *("ghcr.io/Me/x", "ghcr.io/me/x:", "ghcr.io/me/x@sha256:a", "-a.b/x", "a.b/x y"),
        *("a.b/../x", "a.b/x\n", "ghcr.io/", "me:secret@ghcr.io/x"),
    ],
)
def test_lookup_of_an_invalid_reference_runs_no_command(reference: str) -> None:
    run = FakeRunner()
    with pytest.raises(UsageError, match="is not the name") as caught:
        lookup(reference, run)
    assert run.commands == []
    assert "secret" not in str(caught.value)


def test_of_platform_is_the_image_for_it_or_a_usage_error() -> None:
    assert of_platform(NAME, ARM64, answering(INDEX)).digest == D2
    with pytest.raises(UsageError, match=f"no image for {ARM64}; it has one for {AMD64}"):
        of_platform(NAME, ARM64, answering(SINGLE))
    with pytest.raises(UsageError, match="is not in its registry"):
        of_platform(NAME, AMD64, FakeRunner({INSPECT: (1, "ERROR: not found")}))


def test_exact_names_an_image_not_an_index() -> None:
    assert exact(NAME, answering(INDEX), platform=ARM64) == f"{REPOSITORY}@{D2}"
    assert exact(NAME, answering(OF_ONE), platform=ARM64) == f"{REPOSITORY}@{D2}"
    # An emulator may build an image of another platform again.
    assert exact(NAME, answering(SINGLE), platform=ARM64) == NAME


@pytest.mark.parametrize(
    ("layers", "total"),
    [
        ([{"size": 3}, {"size": 4}], 7),
        ([{"size": -3}], None),
        ([{"size": 10**13}], None),
        ([], None),
    ],
)
def test_pull_size(layers: list[dict[str, int]], total: int | None) -> None:
    run = FakeRunner({RAW: (0, json.dumps({"layers": layers}))})
    if total:
        assert pull_size(f"{REPOSITORY}@{D1}", run) == total
    else:
        with pytest.raises(NetworkError):
            pull_size(f"{REPOSITORY}@{D1}", run)


@pytest.mark.parametrize(
    ("text", "kind", "word"),
    [
        ("status from PUT request to http://h/v2: 401 Unauthorized", UsageError, "login"),
        ("denied: permission_denied: write_package", UsageError, "docker login ghcr.io"),
        ("status from PUT request: 500 Internal Server Error", NetworkError, "again later"),
        ("unexpected status from PUT request: 429 Too Many Requests", NetworkError, "again later"),
        ("write tcp 127.0.0.1:404->127.0.0.1:403: connection reset by peer", NetworkError, "later"),
        ("dial tcp: lookup ghcr.oi: no such host", NoAnswerError, "check its name"),
        ("x509: certificate signed by unknown authority", UsageError, "x509"),
        ("error getting credentials - err: 1, out: `my-password`", UsageError, "credsStore"),
        # of moby 26.1
        ("manifest for a:1 not found: manifest unknown", UsageError, "check its name"),
        (
            "pull access denied for a, repository does not exist or may require l",
            UsageError,
            "login",
        ),
        ("toomanyrequests: You have reached your pull rate limit", NetworkError, "again later"),
        (
            "a: denied\nb: Pushing\n\x1b[31munexpected EOF\x1b[0m\n",
            NetworkError,
            ": unexpected EOF;",
        ),
    ],
)
def test_problem_of_a_message(text: str, kind: type[TorchImagesError], word: str) -> None:
    error = of_registry(NAME, text)
    assert type(error) is kind
    assert word in str(error)
    assert "my-password" not in str(error)


def test_retry_waits_longer_each_time_and_gives_up() -> None:
    waits: list[float] = []

    def broken() -> None:
        raise NetworkError("broken")

    with pytest.raises(NetworkError):
        retry(broken, retries=8, say=lambda _: None, sleep=waits.append)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_retry_of_a_host_that_does_not_exist_or_answer_ends_at_once() -> None:
    tried: list[int] = []

    def silent() -> None:
        tried.append(1)
        raise NoAnswerError("no such host")

    with pytest.raises(NoAnswerError):
        retry(silent, retries=8, say=lambda _: None, sleep=lambda _: None)
    assert tried == [1]


def test_has_host() -> None:
    for name in ("ghcr.io/me/x:sm120", "127.0.0.1:5000/me/torch-cu130", "localhost/torch-cu130"):
        assert has_host(name)
    for name in ("torch-cu130:sm120", "me/torch-cu130:sm120", D1, f"torch-cu130@{D1}"):
        assert not has_host(name)


@pytest.mark.parametrize(
    ("answer", "public"),
    [
        ((1, "ERROR: failed to fetch anonymous token: 401 Unauthorized\n"), False),
        ((1, "ERROR: pull access denied: insufficient_scope: authorization failed"), False),
        ((0, "{}"), True),
        ((1, "ERROR: dial tcp: i/o timeout"), True),
    ],
)
def test_is_public_asks_without_credentials_but_with_the_plugins_beside_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: tuple[int, str], public: bool
) -> None:
    class Recording(FakeRunner):
        def run(self, command: Sequence[str], **options: Any) -> Completed:
            folder = Path(options["env"]["DOCKER_CONFIG"])
            assert [path.name for path in folder.iterdir()] == ["cli-plugins"]
            assert (folder / "cli-plugins" / "docker-buildx").read_text() == "buildx"
            assert options["env"]["DOCKER_AUTH_CONFIG"] is None
            return super().run(command, **options)

    (tmp_path / "cli-plugins").mkdir()
    (tmp_path / "cli-plugins" / "docker-buildx").write_text("buildx")
    (tmp_path / "config.json").write_text('{"auths": {"ghcr.io": {"auth": "secret"}}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert is_public(NAME, Recording({RAW: answer})) is public
