"""What an image's locks say together: identity, versions, and errors that name the file."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.conftest import T130
from torch_images.build.input_labels import LOCK
from torch_images.config.choose import choose
from torch_images.config.lock_selection import inputs
from torch_images.config.types import Config
from torch_images.errors import LockError
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo
from torch_images.locks.files import dumps
from torch_images.locks.image_lock import (
    ROLES,
    ImageLock,
    compat_versions,
    image_lock,
    parse_image_lock,
    with_locked_trees,
)
from torch_images.locks.wheels import read_wheels
from torch_images.verify.identify import carried_lock

BASE = "base-trixie"


@pytest.fixture
def lock(config: Config, root: Path) -> ImageLock:
    return image_lock(config, choose(config), root / "locks")


@pytest.fixture
def fork(config: Config, root: Path) -> ImageLock:
    return image_lock(config, choose(config, source="fork"), root / "locks")


@pytest.fixture
def locks(root: Path, tmp_path: Path) -> Path:
    """A copy of all locks."""
    shutil.copytree(root / "locks", tmp_path / "locks")
    return tmp_path / "locks"


def test_digest_of_all_locks(lock: ImageLock) -> None:
    """Tags and labels have them, so the same locks must always give the same."""
    texts = lock.texts()
    assert list(texts) == sorted(texts)
    assert lock.digest == hashlib.sha256("".join(texts.values()).encode()).hexdigest()
    assert replace(lock, sbom=lock.build).digest != lock.digest


@pytest.mark.parametrize("cuda", ["13.0", "12.8"])
def test_the_compat_library_is_in_an_image_that_says_so_and_in_no_other(
    config: Config, root: Path, cuda: str
) -> None:
    plain = image_lock(config, choose(config, cuda=cuda), root / "locks")
    assert (plain.compat, plain.compat_version) == (None, "")
    image = image_lock(config, choose(config, cuda=cuda, compat="with"), root / "locks")
    assert image.compat
    assert replace(image, compat=None) == plain
    assert parse_image_lock(image.texts()) == image
    assert image.compat.name == f"compat-cu{cuda.replace('.', '')}"
    versions = compat_versions(config, root / "locks")
    assert f"{versions[cuda]}-" in f"{image.compat_version}-"
    assert "-" not in versions[cuda]
    assert tuple(versions) == config.names("cuda")


def test_a_compat_library_that_is_not_locked_is_locked_with_its_image(
    config: Config, root: Path
) -> None:
    axes, name = {"platform": "linux/arm64"}, "compat-cu130-arm64"
    spec = choose(config, **axes, compat="with")
    with pytest.raises(LockError) as caught:
        image_lock(config, spec, root / "locks")
    assert str(caught.value) == (
        f"{spec.id} is not locked: locks/{name}.json does not exist; "
        f"run `invoke lock --select {spec.id}`"
    )
    assert [item.name for item in inputs(config, name)] == [name]
    assert image_lock(config, choose(config, **axes), root / "locks").compat is None


def test_with_locked_trees_settles_an_image(config: Config, root: Path, fork: ImageLock) -> None:
    spec = choose(config, source="fork")
    assert fork.sources
    trees = tuple(
        replace(tree, repository=f"https://mine/{tree.name}", commit=digit * 40, version=digit)
        for tree, digit in zip(fork.sources.trees, "12", strict=True)
    )
    settled = with_locked_trees(spec, replace(fork, sources=replace(fork.sources, trees=trees)))
    for tree in trees:
        chosen = getattr(settled.source, tree.name)
        assert (chosen.repository, chosen.commit, chosen.version) == (
            tree.repository,
            tree.commit,
            tree.version,
        )
    plain = choose(config)
    assert with_locked_trees(plain, image_lock(config, plain, root / "locks")) == plain


KINDS: tuple[dict[str, str], ...] = (
    {},
    {"variant": "pod"},
    {"variant": "vllm"},
    {"compat": "with"},
    {"source": "fork"},
    {"source": "fork", "cuda": "12.8"},
    {"platform": "linux/arm64"},
)


@pytest.mark.parametrize("axes", KINDS, ids=str)
def test_an_image_carries_its_lock(config: Config, root: Path, axes: dict[str, str]) -> None:
    lock = image_lock(config, choose(config, **axes), root / "locks")
    texts = lock.texts()
    assert parse_image_lock(texts) == lock
    assert parse_image_lock(dict(reversed(texts.items()))).digest == lock.digest


def test_roles_are_data(lock: ImageLock) -> None:
    """Not names of files: two locks may be in each other's place."""
    texts = lock.texts()
    roles = json.loads(texts[ROLES])
    roles["build"], roles["sbom"] = roles["sbom"], roles["build"]
    other = parse_image_lock({**texts, ROLES: json.dumps(roles)})
    assert (other.build, other.sbom) == (lock.sbom, lock.build)
    assert other.digest != lock.digest


@pytest.mark.parametrize(
    "roles", ["", "[]", "{}", '{"wheels": 3}', '{"wheels": [[]]}', '{"other": "x"}', "[" * 99_999]
)
def test_other_roles_are_not_a_lock(lock: ImageLock, roles: str) -> None:
    for texts in ({**lock.texts(), ROLES: roles}, {ROLES: roles}, {}):
        with pytest.raises(LockError, match="not the locks of one image"):
            parse_image_lock(texts)


@pytest.mark.parametrize(
    ("name", "change", "axes"),
    [
        (f"wheel-cu130-torch{T130}-py313-devel", {"numpy": "1.0"}, {"variant": "devel"}),
        (f"wheel-cu130-torch{T130}-py313", {"cuda-toolkit": "12.8.1"}, {}),
    ],
)
def test_versions_that_cannot_be_in_one_image(
    config: Config, locks: Path, name: str, change: dict[str, str], axes: dict[str, str]
) -> None:
    """Of a plain lock that was renewed, and of a torch for another CUDA version."""
    lock = read_wheels(locks / f"{name}.json")
    wheels = (replace(w, version=change.get(w.name, w.version)) for w in lock.wheels)
    (locks / f"{name}.json").write_text(dumps(replace(lock, wheels=tuple(wheels))))
    with pytest.raises(LockError, match=r"has numpy 1\.0|requires CUDA 12\.8"):
        image_lock(config, choose(config, **axes), locks)


def test_carried_lock_matches_its_label(lock: ImageLock) -> None:
    """Someone who changed both, lock and label, built another image."""

    class Carrying(Engine):
        def __init__(self, digest: str) -> None:
            self.labels = {LOCK: f"sha256:{digest}"}

        def read_files(self, image: str, folder: str) -> dict[str, str]:
            return lock.texts()

        def inspect(self, image: str) -> ImageInfo:
            return ImageInfo(id="x", size=1, labels=self.labels, config={}, created="")

    assert carried_lock("x", Carrying(lock.digest)) == lock
    with pytest.raises(LockError, match="but its label is sha256:0"):
        carried_lock("x", Carrying("0" * 64))
