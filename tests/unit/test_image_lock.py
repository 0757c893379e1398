"""What an image's locks say together: identity, versions, and errors that name the file."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.releases import T130
from torch_images.build.input_labels import LOCK
from torch_images.config.choose import choose
from torch_images.config.lock_selection import inputs
from torch_images.config.types import Config
from torch_images.errors import LockError
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo
from torch_images.locks.debs import DebLock
from torch_images.locks.files import dumps, read
from torch_images.locks.image_lock import (
    ROLES,
    ImageLock,
    compat_versions,
    image_lock,
    parse_image_lock,
    with_locked_trees,
)
from torch_images.locks.wheels import read_wheels
from torch_images.platforms import ARM64
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


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def edit(folder: Path, name: str, **changes: Any) -> None:
    """Change members of a lock; None removes one."""
    path = folder / f"{name}.json"
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in document.items() if v is not None}))


@pytest.mark.usefixtures("far_east")
def test_a_date_is_the_same_moment_everywhere(lock: ImageLock) -> None:
    newest = replace(lock, wheels=replace(lock.wheels, date=date(2031, 1, 1)))
    assert newest.epoch == 1924992000


def test_the_digest_is_of_all_locks(lock: ImageLock) -> None:
    """Tags and labels have them, so the same locks must always give the same."""
    texts = lock.texts()
    assert list(texts) == sorted(texts)
    assert lock.digest == hashlib.sha256("".join(texts.values()).encode()).hexdigest()
    assert replace(lock, sbom=lock.build).digest != lock.digest


def test_an_image_is_unlocked_where_any_part_is(lock: ImageLock, fork: ImageLock) -> None:
    assert not lock.unlocked
    loose = replace(lock.base, unlocked=True)
    assert replace(lock, base=loose).unlocked
    assert replace(lock, extra_debs=loose).unlocked
    assert replace(lock, tool_debs=loose).unlocked
    assert not replace(lock, extra_debs=lock.base, tool_debs=lock.base).unlocked
    assert fork.sources
    assert not fork.unlocked
    assert replace(fork, sources=replace(fork.sources, unlocked=True)).unlocked


def test_versions_of_what_an_image_has(lock: ImageLock, fork: ImageLock) -> None:
    assert lock.triton == lock.wheels.versions()["triton"]
    assert fork.sources
    assert "triton" not in fork.wheels.versions()
    assert fork.triton == fork.sources.tree("triton").version
    assert lock.compiled == {}
    torch, triton = fork.sources.tree("torch"), fork.sources.tree("triton")
    assert fork.compiled == {
        "torch": f"{torch.version}+git{torch.commit[:7]}.cu130",
        "triton": f"{triton.version}+git{triton.commit[:7]}",
    }


def test_all_packages_and_archives(config: Config, root: Path, lock: ImageLock) -> None:
    devel = image_lock(config, choose(config, variant="devel"), root / "locks")
    assert devel.extra_debs
    assert devel.all_debs == (*lock.base.debs, *devel.extra_debs.debs)
    assert lock.all_debs == lock.base.debs
    assert lock.all_archives == ()
    fork = image_lock(config, choose(config, source="fork", cuda="12.8"), root / "locks")
    assert fork.sources
    assert fork.toolkit
    assert fork.all_archives == (*fork.sources.archives, *fork.toolkit.archives)


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
    found = compat_versions(config, root / "locks")
    assert f"{found[cuda]}-" in f"{image.compat_version}-"
    assert "-" not in found[cuda]
    assert tuple(found) == config.names("cuda")


@pytest.mark.parametrize(
    ("axes", "name"),
    [({"cuda": "13.2"}, "compat-cu132"), ({"platform": "linux/arm64"}, "compat-cu130-arm64")],
)
def test_a_compat_library_that_is_not_locked_is_locked_with_its_image(
    config: Config, root: Path, axes: dict[str, str], name: str
) -> None:
    spec = choose(config, **axes, compat="with")
    with pytest.raises(LockError) as caught:
        image_lock(config, spec, root / "locks")
    assert str(caught.value) == (
        f"{spec.id} is not locked: locks/{name}.json does not exist; "
        f"run `invoke lock --select {spec.id}`"
    )
    assert [item.name for item in inputs(config, name)] == [name]
    assert image_lock(config, choose(config, **axes), root / "locks").compat is None


def test_a_compat_library_is_of_the_images_platform(config: Config, locks: Path) -> None:
    lock = read(DebLock, locks / "compat-cu130.json")
    path = locks / "compat-cu130-arm64.json"
    path.write_text(dumps(replace(lock, name=path.stem, platform=ARM64)))
    arm = image_lock(config, choose(config, compat="with", platform="linux/arm64"), locks)
    assert arm.compat
    assert {arm.compat.platform, arm.build.platform} == {ARM64}
    path.unlink()
    assert set(compat_versions(config, locks, ARM64).values()) == {""}


def test_a_version_of_compat_ends_at_its_first_dash(config: Config, locks: Path) -> None:
    path = locks / "compat-cu130.json"
    lock = read(DebLock, path)
    path.write_text(
        dumps(replace(lock, debs=(replace(lock.debs[0], version="580.1.2-3ubuntu-4"),)))
    )
    assert compat_versions(config, locks)["13.0"] == "580.1.2"


def test_a_base_with_another_python_is_refused(config: Config, locks: Path) -> None:
    """Its wheels would be installed for a Python that the image does not have."""
    spec = choose(config)
    spec = replace(spec, base=replace(spec.base, python="3.1"))
    for path in locks.glob("*-py313*"):
        path.rename(path.with_name(path.name.replace("-py313", "-py31")))
    with pytest.raises(LockError) as caught:
        image_lock(config, spec, locks)
    assert re.fullmatch(
        rf"locks/{BASE}.json has python3 3.13\.\S+, but base trixie has python 3.1 in images.yaml",
        caught.value.message,
    )
    assert caught.value.hint == "correct python of base trixie"


def test_an_image_is_settled_on_the_trees_of_its_lock(config: Config, fork: ImageLock) -> None:
    spec = choose(config, source="fork")
    assert fork.sources
    trees = tuple(
        replace(tree, repository=f"https://mine/{tree.name}", commit=digit * 40, version=digit)
        for tree, digit in zip(fork.sources.trees, "12", strict=True)
    )
    found = with_locked_trees(spec, replace(fork, sources=replace(fork.sources, trees=trees)))
    for tree in trees:
        chosen = getattr(found.source, tree.name)
        assert (chosen.repository, chosen.commit, chosen.version) == (
            tree.repository,
            tree.commit,
            tree.version,
        )
    plain = choose(config)
    assert (
        with_locked_trees(plain, image_lock(config, plain, Path(__file__).parents[2] / "locks"))
        == plain
    )


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


def test_each_file_has_a_role(lock: ImageLock) -> None:
    texts = lock.texts()
    for others in (
        {name: text for name, text in texts.items() if name != f"{BASE}.json"},
        {**texts, "other.json": texts[f"{BASE}.json"]},
    ):
        with pytest.raises(LockError, match="not the locks of one image"):
            parse_image_lock(others)


def test_the_options_of_a_build_are_part_of_its_lock(config: Config, fork: ImageLock) -> None:
    """Other options compile another torch, which must not have the name of this one."""
    assert fork.sources
    assert fork.sources.build == choose(config, source="fork").source.build


def test_what_a_variant_replaces_by_the_same_is_not_there_twice(
    config: Config, locks: Path
) -> None:
    plain = read_wheels(locks / f"wheel-cu130-torch{T130}-py313.json")
    [own] = [w for w in plain.wheels if w.name == "cuda-bindings"]
    [other] = [
        w
        for w in read_wheels(locks / f"wheel-cu130-torch{T130}-py313-pod.json").wheels
        if w.name == own.name
    ]
    path = locks / f"wheel-cu130-torch{T130}-py313-pod.json"
    pod_lock = read_wheels(path)
    same = tuple(own if wheel == other else wheel for wheel in pod_lock.wheels)
    path.write_text(dumps(replace(pod_lock, wheels=same)))
    pod = image_lock(config, choose(config, variant="pod"), locks)
    assert pod.extra_wheels
    assert own.name not in pod.extra_wheels.versions()
    assert [w for w in pod.all_wheels if w.name == own.name] == [own]


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


def test_a_file_that_changes_is_read_again(locks: Path) -> None:
    """Parsed locks are cached by their text."""
    path = locks / "base-trixie.json"
    before = read(DebLock, path)
    path.write_text(dumps(replace(before, date=date(1999, 1, 1))))
    assert read(DebLock, path) == replace(before, date=date(1999, 1, 1))


def test_a_carried_lock_is_that_of_its_label(lock: ImageLock) -> None:
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
