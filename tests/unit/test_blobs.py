"""Blobs of a registry: only the right bytes are taken, and nothing waits for ever."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.servers import closed_port
from tests.standin_registry import standin_registry
from torch_images.errors import NetworkError
from torch_images.fetch import blobs as module
from torch_images.fetch.blobs import Blobs, LoginError, OtherBlobError
from torch_images.fetch.stalls import Stall
from torch_images.host.network import Network

DATA = bytes(range(256)) * 1000
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"


def of(host: str, patience: float = 60.0) -> Blobs:
    return Blobs(f"{host}/me/x", Network(), patience=patience)


@pytest.mark.parametrize("shown", ["", "anybody"])
def test_a_blob_is_had(shown: str, tmp_path: Path) -> None:
    """Also from a registry that wants a token of everybody, which is asked for once."""
    with standin_registry({DIGEST: DATA}, shown=shown) as standin:
        blobs = of(standin.host)
        assert blobs.has_manifest(DIGEST)
        assert blobs.save(DIGEST, len(DATA), tmp_path / "blob")
        assert sum(path.startswith("/token") for path in standin.asked) == bool(shown)
        assert f"/v2/me/x/blobs/{DIGEST}" in standin.asked
    assert (tmp_path / "blob").read_bytes() == DATA


def test_a_blob_that_is_not_there(tmp_path: Path) -> None:
    with standin_registry({}) as standin:
        assert not of(standin.host).has_manifest(DIGEST)
        assert not of(standin.host).save(DIGEST, len(DATA), tmp_path / "blob")
    assert not (tmp_path / "blob").exists()


@pytest.mark.parametrize(
    ("lie", "error", "text"),
    [
        ("other bytes", OtherBlobError, "it sent other bytes for sha256:"),
        ("longer", OtherBlobError, "it sent other bytes for sha256:"),
        ("shorter", OtherBlobError, "it sent other bytes for sha256:"),
        ("dies", NetworkError, "a download broke off: "),
        ("broken", NetworkError, "it answers with status 500"),
    ],
)
def test_a_registry_that_lies(lie: str, error: type, text: str, tmp_path: Path) -> None:
    with (
        standin_registry({DIGEST: DATA}, {DIGEST: lie}) as standin,
        pytest.raises(error, match=text),
    ):
        of(standin.host).save(DIGEST, len(DATA), tmp_path / "blob")


def test_another_size_than_the_recorded_one(tmp_path: Path) -> None:
    with standin_registry({DIGEST: DATA}) as standin:
        for size in (len(DATA) - 1, len(DATA) + 1):
            with pytest.raises(OtherBlobError):
                of(standin.host).save(DIGEST, size, tmp_path / "blob")


def test_a_blob_without_end_is_not_written_without_end(tmp_path: Path) -> None:
    with standin_registry({DIGEST: DATA}) as standin, pytest.raises(OtherBlobError):
        of(standin.host).save(DIGEST, 1000, tmp_path / "blob")
    assert (tmp_path / "blob").stat().st_size <= 1000


def test_a_registry_that_stalls(tmp_path: Path) -> None:
    with (
        standin_registry({DIGEST: DATA}, {DIGEST: "stalls"}) as standin,
        pytest.raises(NetworkError, match=r"broke off: .*timed out"),
    ):
        of(standin.host, 0.2).save(DIGEST, len(DATA), tmp_path / "blob")


def test_a_registry_that_is_not_there() -> None:
    with pytest.raises(NetworkError, match="it does not answer: "):
        of(f"127.0.0.1:{closed_port()}").has_manifest(DIGEST)


@pytest.mark.parametrize(
    "challenge",
    [
        "",
        'Basic realm="x"',
        'Bearer realm="http://elsewhere.example/token"',
        'Bearer realm="file:///etc/passwd"',
        'Bearer realm="http://[::1/token"',
    ],
)
def test_no_token_is_asked_for_where_anybody_could_listen(challenge: str) -> None:
    with pytest.raises(LoginError):
        of("127.0.0.1:1")._token(challenge)


@pytest.mark.parametrize("shown", ["two words", "x" * 16385, "x" * (1 << 18), "\x1b"])
def test_a_token_that_is_none(shown: str) -> None:
    with (
        standin_registry({DIGEST: DATA}, shown=shown) as standin,
        pytest.raises(NetworkError, match="it gives "),
    ):
        of(standin.host).has_manifest(DIGEST)


def test_a_token_that_does_not_help() -> None:
    with standin_registry({DIGEST: DATA}, shown="one") as standin:
        blobs = of(standin.host)
        assert blobs.has_manifest(DIGEST)
        blobs._bearer = module._Bearer("stale")
        assert blobs.has_manifest(DIGEST)  # it asks for another one


@pytest.mark.parametrize(
    ("host", "root"),
    [
        ("ghcr.io", "https://ghcr.io"),
        ("localhost.example", "https://localhost.example"),
        ("127.0.0.1.example:5000", "https://127.0.0.1.example:5000"),
        ("127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("localhost:5000", "http://localhost:5000"),
    ],
)
def test_only_loopback_is_spoken_to_without_tls(host: str, root: str) -> None:
    assert of(host)._root == root


def test_a_transfer_that_does_not_get_on() -> None:
    now = 0.0
    stall = Stall(30, clock=lambda: now)
    stall.seen(1 << 20)
    now = 30.0
    stall.seen((1 << 20) + 5)
    now = 30.1
    with pytest.raises(NetworkError, match="less than 1 MB came in 30 s"):
        stall.seen((2 << 20) - 1)
    stall.seen(2 << 20)  # in time after all, by another caller
    now = 100.0
    stall.rest(2 << 20)
    now = 130.0
    stall.seen(2 << 20)
