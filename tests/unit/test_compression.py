"""How small the layers of wheels become, and that small ones are kept apart from others."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
import zstandard

from torch_images.build.plan import lock_image, plan_image, version
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.layers.plan import layer_plans
from torch_images.oci import layout
from torch_images.oci.compression import Compression, parse


def test_a_small_image_has_a_tag_of_its_own(config: Config, root: Path) -> None:
    """Its bytes are others, so it may not take the name of the image with fast layers."""
    image = plan_image(config, lock_image(config, choose(config), root / "locks"), root)
    small = dataclasses.replace(image, small=True)
    assert small.identity == image.identity
    assert version(config, small) == f"{version(config, image)}-small"


def test_small_layers_have_keys_of_their_own(config: Config, root: Path) -> None:
    """Neither takes the place of the other in the cache; all else is equal, the identity too."""
    image = lock_image(config, choose(config, arch="12.0"), root / "locks")
    fast = layer_plans(config, image.spec, image.lock)
    small = layer_plans(config, image.spec, image.lock, small=True)
    last = small.pop("small")
    assert small.keys() == fast.keys()
    for name, plans in fast.items():
        assert small[name] == tuple(dataclasses.replace(plan, small=True) for plan in plans)
    keys = {plan.key for plans in (*fast.values(), *small.values(), last) for plan in plans}
    assert len(keys) == 2 * sum(map(len, fast.values())) + 1
    dockerfile = plan_image(config, image, root).context.dockerfile
    assert all(plan.key in dockerfile for plans in fast.values() for plan in plans)


@pytest.mark.parametrize("effort", list(layout.Effort))
def test_no_layer_needs_a_larger_window_than_every_decoder_has(effort: layout.Effort) -> None:
    """RFC 8878 says 8 MiB; containerd takes more than twice as long to unpack 128 MiB."""
    blob = io.BytesIO()
    sink = layout.Compressed(blob, effort=effort)
    sink.write(bytes(20_000_000))
    sink.finish()
    assert zstandard.get_frame_parameters(blob.getvalue()).window_size <= 8 << 20


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_makes_the_same_small_layer(threads: int) -> None:
    data = b"".join(bytes([n % 256]) * 100_000 + n.to_bytes(4) * 999 for n in range(30))
    layers = []
    for size in (len(data), 77_777):
        sink = layout.Compressed(io.BytesIO(), threads, effort=layout.Effort.SMALL)
        for start in range(0, len(data), size):
            sink.write(data[start : start + size])
        layers.append(sink.finish())
    one = layout.Compressed(io.BytesIO(), 1, effort=layout.Effort.SMALL)
    one.write(data)
    assert layers == [one.finish()] * 2


@pytest.mark.parametrize("label", ["\x1b[31msmall", "small --push", "--json"])
def test_parse_refuses_the_label_of_a_stranger(label: str) -> None:
    """`reproduce` reads it from an image of a registry, before it builds."""
    with pytest.raises(UsageError) as caught:
        parse(label)
    assert "\x1b" not in str(caught.value)
    assert parse("small") is Compression.SMALL
