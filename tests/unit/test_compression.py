"""Where an image says how it is compressed, and who reads it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fakes import FakeRunner
from torch_images.build.plan import lock_image
from torch_images.cli import verb
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import EngineError, NetworkError, UsageError
from torch_images.host import tars
from torch_images.host.engine import Engine
from torch_images.oci import layout
from torch_images.oci.compression import ANNOTATION, Compression, parse, recorded, recording
from torch_images.publish.registry import raw
from torch_images.verify.reproduce import _options

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just(ANNOTATION), inner),
)


@pytest.mark.parametrize("compression", list(Compression))
def test_what_is_recorded_is_read_back(compression: Compression) -> None:
    assert recorded({"annotations": recording(compression)}) is compression


def test_a_fast_image_has_the_manifest_that_it_always_had() -> None:
    assert recording(Compression.FAST) == {}
    assert recorded({}) is recorded({"annotations": None}) is Compression.FAST


def test_an_image_of_a_later_version_is_refused() -> None:
    with pytest.raises(UsageError, match=r"an unknown compression, 'ti\\x1bny'; take the version"):
        recorded({"annotations": {ANNOTATION: "ti\x1bny"}})


@given(JSON)
def test_anybody_may_have_written_a_manifest(annotations: Any) -> None:
    try:
        found = recorded({"annotations": annotations})
    except UsageError as error:
        assert str(error).isprintable()
    else:
        small = isinstance(annotations, dict) and annotations.get(ANNOTATION) == "small"
        assert found is (Compression.SMALL if small else Compression.FAST)


@pytest.mark.parametrize("text", ["", "Small", "tiny", "small "])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=rf"unknown compression '{text}'; .*known: fast, small"):
        parse(text)


def test_builds_are_fast_unless_told_otherwise() -> None:
    words: dict[str, Any] = {"progress": "auto", "mirror": [], "compat": "off", "jobs": ""}
    assert verb.build_options(**words).compression is Compression.FAST
    assert verb.build_options(**words, compression="small").compression is Compression.SMALL


def test_a_rebuild_is_told_what_the_image_records(config: Config, root: Path) -> None:
    lock = lock_image(config, choose(config, arch="12.0"), root / "locks").lock
    assert _options(lock, Compression.SMALL)[-1] == "--compression=small"
    # Revisions from before do not know the word.
    assert _options(lock, Compression.FAST) == ["--locked", "--compat=required"]


def test_an_image_that_was_pulled_without_its_layers() -> None:
    """The stream of `docker save` ends where the first blob is missing."""
    digest = f"sha256:{'a' * 64}"
    manifest = json.dumps({"config": {"digest": "sha256:b"}}).encode()
    for files in ({}, {f"blobs/{digest.replace(':', '/')}": manifest}):
        api = SimpleNamespace(get_image=lambda _image, held=files: iter([tars.pack(held)]))
        engine = Engine(cast("Any", SimpleNamespace(api=api)))
        with pytest.raises(EngineError, match=f"has not all layers of {digest}; build it here"):
            engine.contents(digest)


def test_a_manifest_comes_from_its_registry_as_it_is() -> None:
    name = "ghcr.io/me/torch-cu130:sm120"
    inspect = f"docker buildx imagetools inspect --raw {name}"
    held = {"annotations": recording(Compression.SMALL), "layers": []}
    assert raw(name, FakeRunner({inspect: (0, json.dumps(held))})) == held
    with pytest.raises(NetworkError, match="cannot be understood: 'it' is not an object"):
        raw(name, FakeRunner({inspect: (0, "[]")}))
    with pytest.raises(NetworkError, match=r"ghcr\.io could not be reached"):
        raw(name, FakeRunner({inspect: (1, "ERROR: connection reset")}))


def test_layers_of_before_keep_their_keys() -> None:
    """What images that are small need is no part of the keys of all others."""
    version = ".".join(map(str, zstandard.ZSTD_VERSION))
    quick = "(2, {'window_log': 23, 'hash_log': 19, 'min_match': 6})"
    assert f"zstd {version} {quick} (9, {{'window_log': 23}})" == layout.COMPRESSOR


@pytest.mark.parametrize("effort", list(layout.Effort))
def test_no_layer_needs_a_larger_window_than_every_decoder_has(effort: layout.Effort) -> None:
    """RFC 8878 says 8 MiB; containerd takes more than twice as long to unpack 128 MiB."""
    blob = io.BytesIO()
    sink = layout.Compressed(blob, effort=effort)
    sink.write(bytes(20_000_000))
    sink.finish()
    assert zstandard.get_frame_parameters(blob.getvalue()).window_size == 8 << 20
