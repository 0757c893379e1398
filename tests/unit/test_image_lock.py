"""What an image's locks say together: identity, versions, and errors that name the file."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.releases import F130, T130
from torch_images.config.choose import choose
from torch_images.config.lock_selection import inputs
from torch_images.config.types import Config
from torch_images.errors import LockError
from torch_images.locks.debs import DebLock, read_debs
from torch_images.locks.facts import read_facts
from torch_images.locks.image_lock import (
    AnyLock,
    ImageLock,
    compat_versions,
    image_lock,
    parse_image_lock,
    update,
    with_locked_trees,
)
from torch_images.locks.sources import SourceLock, read_sources
from torch_images.locks.wheels import read_wheels
from torch_images.platforms import ARM64

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


def edit(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / f"{name}.txt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


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
        f"{spec.id} is not locked: locks/{name}.txt does not exist; "
        f"run `invoke lock --select {spec.id}`"
    )
    assert [item.name for item in inputs(config, name)] == [name]
    assert image_lock(config, choose(config, **axes), root / "locks").compat is None


def test_what_is_native_is_of_the_images_platform(config: Config, locks: Path) -> None:
    text = (locks / "compat-cu130.txt").read_text()
    text = text.replace("# system: ", "# platform: linux/arm64\n# system: ")
    text = text.replace("x86_64", "sbsa").replace("_amd64.deb", "_arm64.deb")
    (locks / "compat-cu130-arm64.txt").write_text(text)
    arm = image_lock(config, choose(config, compat="with", platform="linux/arm64"), locks)
    assert arm.compat
    assert {arm.compat.platform, arm.build.platform} == {ARM64}
    (locks / "compat-cu130-arm64.txt").unlink()
    assert set(compat_versions(config, locks, ARM64).values()) == {""}


def test_a_version_of_compat_ends_at_its_first_dash(config: Config, locks: Path) -> None:
    lock = read_debs(locks / "compat-cu130.txt")
    path = locks / "compat-cu130.txt"
    path.write_text(path.read_text().replace(lock.debs[0].version, "580.1.2-3ubuntu-4"))
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
        rf"locks/{BASE}.txt has python3 3.13\.\S+, but base trixie has python 3.1 in images.yaml",
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


def test_what_compiles_is_there_as_a_whole_and_nothing_else_is(fork: ImageLock) -> None:
    texts = fork.texts()
    for name in ("source-fork", "build-fork-trixie"):
        with pytest.raises(LockError, match="not the locks of one image"):
            parse_image_lock({file: texts[file] for file in texts if file != f"{name}.txt"})
    with pytest.raises(LockError, match=r"not the locks of one image: .*, other\.txt"):
        parse_image_lock({**texts, "other.txt": texts["base-trixie.txt"]})


def test_the_options_of_a_build_are_part_of_its_lock(config: Config, fork: ImageLock) -> None:
    """Other options compile another torch, which must not have the name of this one."""
    assert fork.sources
    assert fork.sources.build == choose(config, source="fork").source.build


def test_a_variant_may_bring_what_the_plain_wheels_lack(
    config: Config, root: Path, lock: ImageLock, fork: ImageLock
) -> None:
    """A compiled torch needs no wheel in either, and Triton may come with the variant."""
    devel = image_lock(config, choose(config, variant="devel"), root / "locks")
    extra = devel.extra_wheels
    assert extra
    compiled = replace(fork, extra_wheels=extra)
    assert parse_image_lock(compiled.texts()) == compiled
    triton = tuple(w for w in lock.wheels.wheels if w.name == "triton")
    kept = tuple(w for w in lock.wheels.wheels if w.name != "triton")
    plain = replace(lock, wheels=replace(lock.wheels, wheels=kept))
    with pytest.raises(LockError, match="it lacks triton"):
        parse_image_lock(plain.texts())
    wider = replace(extra, wheels=tuple(sorted((*extra.wheels, *triton))))
    moved = replace(plain, extra_wheels=wider)
    assert parse_image_lock(moved.texts()) == moved


def test_tools_are_told_apart_by_their_names(fork: ImageLock) -> None:
    """Wheels are for a Python, packages for a base, whose name may come after "cu130"."""
    assert fork.tool_debs
    other = replace(fork, tool_debs=replace(fork.tool_debs, name="build-fork-ubuntu24.04"))
    assert parse_image_lock(other.texts()) == other


def test_locks_that_are_not_of_one_image_are_named(lock: ImageLock) -> None:
    texts = {name: text for name, text in lock.texts().items() if "tools" in name}
    with pytest.raises(LockError, match=r"image: tools-build\.txt, tools-sbom\.txt$"):
        parse_image_lock(texts)
    with pytest.raises(LockError, match=r"^not the locks of one image: none$"):
        parse_image_lock({})


def test_a_damaged_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / "base-x.txt").write_text("# date: tomorrow\n")
    with pytest.raises(LockError, match=r"^locks/base-x\.txt: .*; run `invoke lock --select base"):
        read_debs(tmp_path / "base-x.txt")


@pytest.mark.parametrize("name", ["base-trixie", "source-fork", "toolkit-cu128", "tools-sbom"])
def test_only_what_differs_is_written(root: Path, tmp_path: Path, name: str) -> None:
    """Of any kind of lock: the same inputs of another day leave the file alone."""
    path = root / "locks" / f"{name}.txt"
    kept: AnyLock
    if name.startswith("base-"):
        kept = read_debs(path)
    elif name.startswith("tools-"):
        kept = read_wheels(path)
    else:
        kept = read_sources(path)
    copy = tmp_path / path.name
    assert update(copy, kept)
    assert copy.read_text() == path.read_text()
    assert not update(copy, replace(kept, date=date(2031, 1, 1)))
    assert copy.read_text() == path.read_text()
    copy.write_text("damaged")
    assert update(copy, kept)
    assert copy.read_text() == path.read_text()
    assert list(tmp_path.iterdir()) == [copy]
    if isinstance(kept, DebLock | SourceLock):
        assert update(copy, replace(kept, unlocked=not kept.unlocked, date=date(2031, 1, 1)))
        assert "# date: 2031-01-01\n" in copy.read_text()


def test_what_a_variant_replaces_by_the_same_is_not_there_twice(
    config: Config, locks: Path
) -> None:
    plain = read_wheels(locks / f"wheel-cu130-torch{T130}-py313.txt")
    [own] = [w for w in plain.wheels if w.name == "cuda-bindings"]
    [other] = [
        w
        for w in read_wheels(locks / f"wheel-cu130-torch{T130}-py313-pod.txt").wheels
        if w.name == own.name
    ]
    path = locks / f"wheel-cu130-torch{T130}-py313-pod.txt"
    text = path.read_text()
    for field in ("filename", "sha256", "version"):
        text = text.replace(str(getattr(other, field)), str(getattr(own, field)))
    path.write_text(text.replace(f"{other.size} bytes", f"{own.size} bytes"))
    pod = image_lock(config, choose(config, variant="pod"), locks)
    assert pod.extra_wheels
    assert own.name not in pod.extra_wheels.versions()
    assert [w for w in pod.all_wheels if w.name == own.name] == [own]


def test_what_is_out_of_step_is_said_word_by_word(config: Config, locks: Path) -> None:
    edit(locks, f"wheel-cu130-torch{T130}-py313", "numpy pip", "numpy")
    with pytest.raises(LockError) as caught:
        image_lock(config, choose(config), locks)
    assert caught.value.message == (
        f"locks/wheel-cu130-torch{T130}-py313.txt is out of step: it was resolved for numpy setuptools "
        f"torch=={T130}, expected numpy pip setuptools torch=={T130}"
    )


@pytest.mark.parametrize("name", ["base-trixie", "tools-sbom", "source-fork"])
def test_a_lock_that_could_not_be_read_again_is_not_written(
    root: Path, tmp_path: Path, name: str
) -> None:
    """Indexes and archives say what it holds, and a file of it is as good as what reads it."""
    path = root / "locks" / f"{name}.txt"
    bad: AnyLock
    if name.startswith("base-"):
        debs = read_debs(path)
        bad = replace(debs, debs=(replace(debs.debs[0], sha256="x"), *debs.debs[1:]))
    elif name.startswith("tools-"):
        wheels = read_wheels(path)
        bad = replace(wheels, wheels=(replace(wheels.wheels[0], sha256="x"), *wheels.wheels[1:]))
    else:
        sources = read_sources(path)
        bad = replace(sources, trees=(replace(sources.trees[0], commit="x"), *sources.trees[1:]))
    with pytest.raises(
        LockError, match=rf"^locks/{name}\.txt.*; run `invoke lock --select {name}`"
    ):
        update(tmp_path / path.name, bad)
    assert not list(tmp_path.iterdir())


def test_a_missing_lock_of_a_listed_image_is_no_unlisted_image(config: Config, locks: Path) -> None:
    (locks / f"{BASE}.txt").unlink()
    with pytest.raises(LockError, match=rf"locks/{BASE}\.txt") as caught:
        image_lock(config, choose(config), locks)
    assert "it is not one of the project's images" not in str(caught.value)


def without(folder: Path, name: str, word: str) -> None:
    """Take an entry, two lines, out of a lock."""
    path = folder / f"{name}.txt"
    lines = path.read_text().splitlines(keepends=True)
    [number] = [n for n, line in enumerate(lines) if line.startswith(word)]
    path.write_text("".join(lines[: number - 1] + lines[number + 1 :]))


@pytest.mark.parametrize(
    ("name", "word", "axes"),
    [
        (f"wheel-cu130-torch{T130}-py313", "torch==", {}),
        (f"wheel-cu130-torch{T130}-py313-devel", "cmake==", {"variant": "devel"}),
        ("base-trixie-devel", "git=", {"variant": "devel"}),
        (f"build-fork-cu130-torch{F130}-py313", "cmake==", {"source": "fork"}),
        ("build-fork-trixie", "git=", {"source": "fork"}),
    ],
)
def test_a_lock_that_lacks_what_it_was_asked_for(
    config: Config, locks: Path, name: str, word: str, axes: dict[str, str]
) -> None:
    without(locks, name, word)
    package = word.rstrip("=")
    with pytest.raises(LockError, match=rf"^locks/{name}\.txt: it (lacks|has no) {package}\b"):
        image_lock(config, choose(config, **axes), locks)


def test_a_lock_with_another_torch_than_it_was_asked_for(config: Config, locks: Path) -> None:
    path = locks / f"wheel-cu130-torch{T130}-py313.txt"
    path.write_text(path.read_text().replace(f"torch-{T130}", "torch-2.10.0"))
    edit(locks, path.stem, f"\ntorch=={T130}", "\ntorch==2.10.0")
    with pytest.raises(LockError, match=rf"has torch 2\.10\.0.*, but torch=={T130} was requested"):
        image_lock(config, choose(config), locks)


@pytest.mark.parametrize(
    ("file", "read"),
    [
        (f"wheel-cu130-torch{T130}-py313.txt", read_wheels),
        ("base-trixie.txt", read_debs),
        (f"release-cu130-torch{T130}-py313.yaml", read_facts),
    ],
)
def test_a_file_that_changes_is_read_again(
    locks: Path, file: str, read: Callable[[Path], Any]
) -> None:
    """What was read is kept in memory, by the text."""
    path = locks / file
    before = read(path)
    text = path.read_text()
    path.write_text(text.replace(str(before.date), "1999-01-01", 1))
    assert read(path) == replace(before, date=date(1999, 1, 1))
    path.write_text(text)
    assert read(path) == before


def test_the_texts_of_a_lock_are_the_callers_own(lock: ImageLock) -> None:
    before = lock.texts()
    lock.texts().clear()
    assert lock.texts() == before
