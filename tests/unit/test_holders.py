"""Who holds a tag, why it stays, and what is no place to publish to: the words that are said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.releases import T130
from torch_images.build import labels
from torch_images.build.plan import plan_images
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import UsageError, VerifyError
from torch_images.publish.tag_rules import (
    NEW,
    STAYS,
    TAKEN,
    THERE,
    Move,
    Names,
    TagTarget,
    namespace,
    observed,
    plan_moves,
)

NAMES = Names(repository="t", immutable="exact", floating=("short",))
OURS = TagTarget(digest="sha256:a", torch=f"{T130}", created="2026-11-02")


def test_an_image_without_our_labels_is_older_than_any() -> None:
    assert TagTarget.of("d", "2026-11-02T03:04:05Z", labels.read({})) == TagTarget(
        digest="d", torch="0", created="2026-11-02"
    )
    told = {"io.github.torch-images.torch": "2.1"}
    assert TagTarget.of("d", "", labels.read(told)) == TagTarget(
        digest="d", torch="2.1", created=""
    )


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "verification saw CUDA none, but the tag says 13.0"),
        ({"cuda": "13.0"}, f"verification saw torch none, but the tag says {T130}"),
        ({"cuda": "13.0", "torch": f"{T130}"}, "verification saw arch 12.0 none"),
        ({"cuda": "13.0", "torch": f"{T130}+cu130+x", "arch 12.0": "native"}, ""),
        ({"cuda": "13.0", "torch": f"{T130}", "arch 12.0": "native"}, ""),
    ],
)
def test_what_verification_did_not_see(
    config: Config, root: Path, facts: dict[str, str], said: str
) -> None:
    [image] = plan_images(config, [choose(config, arch="12.0")], root, root / "locks")
    label = labels.read(labels.write(config, image))
    if not said:
        assert observed(config, image.spec, label, facts).floating
        return
    with pytest.raises(VerifyError) as caught:
        observed(config, image.spec, label, facts)
    assert caught.value.message.startswith(said)


def moved(held: TagTarget | None) -> list[Move]:
    return list(plan_moves(NAMES, OURS, "r.io/me", lambda _: held))


def test_tags_that_nobody_has() -> None:
    assert moved(None) == [
        Move(reference="r.io/me/t:exact", state=NEW),
        Move(reference="r.io/me/t:short", state=NEW),
    ]
    assert {(m.state, m.held, m.reason) for m in moved(OURS)} == {(THERE, OURS.digest, "")}


def test_why_a_tag_stays() -> None:
    held = TagTarget(digest="sha256:b", torch=f"{T130}", created="2026-11-03")
    immutable, floating = moved(held)
    assert (immutable.state, floating.state) == (TAKEN, STAYS)
    assert immutable.reason == "it is sha256:b"
    assert floating.reason == "it names newer inputs, of 2026-11-03"


@pytest.mark.parametrize(
    ("named", "shown"),
    [("me:pass@ghcr.io/me", "***@ghcr.io/me"), ("ghcr.io/meX", "ghcr.io/meX"), (" x ", "x")],
)
def test_what_is_no_registry(config: Config, named: str, shown: str) -> None:
    with pytest.raises(UsageError) as caught:
        namespace(config, named)
    assert str(caught.value) == (
        f"'{shown}' is not a registry to publish to; give host and owner, such as ghcr.io/me or "
        "127.0.0.1:5000/me"
    )
    assert namespace(config, " ghcr.io/me/ ") == "ghcr.io/me"
