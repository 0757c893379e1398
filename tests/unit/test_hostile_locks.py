"""Locks that nobody should have written: each is refused in one line that names it."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.releases import T130
from tests.unit.conftest import ROOT
from tests.unit.hostile import altered_lines, ends_well
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import LockError
from torch_images.locks import complete
from torch_images.locks.debs import format_debs, parse_debs, read_debs
from torch_images.locks.image_lock import (
    ImageLock,
    compat_versions,
    image_lock,
    parse_image_lock,
    update,
)
from torch_images.locks.sources import (
    format_sources,
    parse_sources,
    read_sources,
)
from torch_images.locks.wheels import format_wheels, parse_wheels, read_wheels
from torch_images.platforms import ARM64

LOCKS = ROOT / "locks"
# One of each grammar, cut to a size that leaves time for many examples.
SHORT = {
    name: "\n".join((LOCKS / f"{name}.txt").read_text().split("\n")[:14])
    for name in (
        *(f"wheel-cu130-torch{T130}-py313", "tools-verify", "base-bookworm"),
        *("compat-cu130", "source-fork", "toolkit-cu128", "unpacked-cutlass-cu130-py313"),
    )
}
DAMAGED = altered_lines(st.sampled_from(sorted(SHORT.values())))


@given(DAMAGED)
def test_a_damaged_lock_of_wheels_is_one_line(text: str) -> None:
    lock = ends_well(lambda: parse_wheels(text, "x"))
    if lock:
        assert parse_wheels(format_wheels(lock), "x") == lock
        assert all(os.path.basename(w.filename) == w.filename for w in lock.wheels)  # noqa: PTH119


@given(DAMAGED)
def test_a_damaged_lock_of_packages_is_one_line(text: str) -> None:
    lock = ends_well(lambda: parse_debs(text, "x"))
    if lock:
        assert parse_debs(format_debs(lock), "x") == lock
        assert not any(".." in deb.path.split("/") for deb in lock.debs)
        assert not any(deb.name.endswith("-") for deb in lock.debs)


@given(DAMAGED)
def test_a_damaged_lock_of_sources_is_one_line(text: str) -> None:
    lock = ends_well(lambda: parse_sources(text, "x"))
    if lock:
        assert parse_sources(format_sources(lock), "x") == lock
        assert not {a.filename for a in lock.archives} & {"", ".", ".."}


@pytest.fixture(scope="module")
def texts(config: Config) -> dict[str, str]:
    """The locks of an image with one of every kind, by file."""
    spec = choose(config, source="fork", cuda="12.8")
    return image_lock(config, spec, LOCKS).texts()


def folder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path)


def latin(path: Path) -> None:
    path.write_bytes(b"# date: 2026-01-01\n\xe4\n")


def huge(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (folder, "it is not a file"),
        (loop, "it cannot be read: Too many levels of symbolic links"),
        (latin, "it is not text in UTF-8, from byte 19 on"),
        (huge, "it has more than 16777216 bytes"),
    ],
)
def test_what_is_no_text_is_named(
    tmp_path: Path, make: Callable[[Path], None], problem: str
) -> None:
    path = tmp_path / "wheel-x.txt"
    make(path)
    for read in (read_wheels, read_debs, read_sources):
        with pytest.raises(LockError) as caught:
            read(path)
        expected = f"locks/wheel-x.txt: {problem}; run `invoke lock --select wheel-x`"
        assert str(caught.value) == expected


def test_a_folder_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "tools-build.txt").mkdir()
    with pytest.raises(LockError, match=r"locks/tools-build\.txt is a folder; move it away"):
        update(tmp_path / "tools-build.txt", read_wheels(LOCKS / "tools-build.txt"))


HEX = "0" * 64
WHEELS = "# date: 2026-01-01\n# python: 3.11\n"
ENTRY = f"# 1 bytes, a-1-py3-none-any.whl\na==1 --hash=sha256:{HEX}\n"


def wheel(filename: str, line: str = "a==1") -> str:
    return f"{WHEELS}# 1 bytes, {filename}\n{line} --hash=sha256:{HEX}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (WHEELS + ENTRY.replace("# 1 ", f"# {'9' * 5000} "), "locks/x.txt:3: not a locked input"),
        (WHEELS + ENTRY * 2, "a occurs twice"),
        (WHEELS + ENTRY.split("\n", maxsplit=1)[0], "it ends in the middle of an input"),
        (WHEELS + ENTRY.split("\n", maxsplit=1)[0] + "\n" + ENTRY, ":3: no locked input follows this size"),
        (WHEELS + "# python: 3.12\n", "the header 'python' occurs twice"),
        (WHEELS + "# colour: red\n", "the header 'colour' is unknown"),
        (WHEELS + "\x1b[31m", "not a locked input: \\x1b[31m;"),
        ("# date: 2026-01-01\n# python: 3.\n", "lacks the version of Python"),
        ("# date: 2026-02-30\n# python: 3.11\n", "lacks a date"),
        (wheel("../a-1-py3-none-any.whl"), "a has a file name that is not a wheel's"),
        (wheel("a" * 300 + "-1-py3-none-any.whl"), "a has a file name that is not a wheel's"),
        (wheel("a.whl"), "a.whl is not the name of a wheel"),
        (wheel("b-1-py3-none-any.whl"), "b-1-py3-none-any.whl is not a wheel of a 1"),
        (wheel("a-1-cp312-cp312-linux_x86_64.whl"), "is not a wheel for Python 3.11 on linux/amd64"),
    ],
)  # fmt: skip
def test_a_lock_of_wheels_is_refused(text: str, problem: str) -> None:
    with pytest.raises(LockError, match=r"^locks/x\.txt") as caught:
        parse_wheels(text, "x")
    assert problem in str(caught.value)


DEBS = "# date: 2026-01-01\n# system: debian bookworm\n"


def deb(name: str = "tini", path: str = "debian/pool/tini_1_amd64.deb") -> str:
    return f"{DEBS}# 1 bytes, {path}\n{name}=1 sha256:{HEX}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (deb("apt-"), "not a locked input: apt-=1"),
        (deb(path="debian/../tini_1.deb"), "not a locked input: tini=1"),
        (deb(path="debian/pool/./tini_1.deb"), "not a locked input: tini=1"),
        (deb() + deb().removeprefix(DEBS), "tini occurs twice"),
        (deb() + deb("t2").removeprefix(DEBS), "tini_1_amd64.deb occurs twice"),
        (deb() + deb("t2").removeprefix(DEBS).replace("/tini_", "/Tini_"), "occurs twice"),
        (f"{DEBS}# image: a/b:1\n", "image a/b:1 lacks a tag or a digest"),
        (f"{DEBS}# unlocked: no\n", "'unlocked' may only be yes"),
    ],
)
def test_a_lock_of_packages_is_refused(text: str, problem: str) -> None:
    with pytest.raises(LockError, match=r"^locks/x\.txt") as caught:
        parse_debs(text, "x")
    assert problem in str(caught.value)


def archive(url: str, name: str = "llvm") -> str:
    return f"# date: 2026-01-01\n# 1 bytes, {url}\n{name}==1 sha256:{HEX}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (archive("https://host/a/.."), "llvm has no URL of a file"),
        (archive("file:///etc/passwd"), "llvm has no URL of a file"),
        (
            archive("https://host/x") + archive("https://other/x", "json").split("\n", 1)[1],
            "x occurs twice",
        ),
        (
            archive("https://host/x") + archive("https://other/X", "json").split("\n", 1)[1],
            "x occurs twice",
        ),
        (f"# date: 2026-01-01\n# ? bytes, u\ntorch==x git:{'0' * 40}\n", "torch==x git:"),
    ],
)
def test_a_lock_of_sources_is_refused(text: str, problem: str) -> None:
    with pytest.raises(LockError, match=r"^locks/x\.txt") as caught:
        parse_sources(text, "x")
    assert problem in str(caught.value)


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str, str, str], Path]:
    """The project's locks with a pattern of one of them replaced; their folder."""

    def change(name: str, pattern: str, new: str) -> Path:
        for path in LOCKS.glob("*.*"):
            if not (tmp_path / path.name).exists():
                (tmp_path / path.name).write_bytes(path.read_bytes())
        path = tmp_path / f"{name}.txt"
        text, count = re.subn(pattern, new, path.read_text(), flags=re.MULTILINE)
        assert count
        path.write_text(text)
        return tmp_path

    return change


def pinned(name: str) -> str:
    """A pattern of both lines of an input."""
    return rf"^# \S+ bytes, \S+\n{name}==?\S+ \S+\n"


@pytest.mark.parametrize(
    ("asked", "name", "pattern", "new", "problem"),
    [
        ({}, f"wheel-cu130-torch{T130}-py313", pinned("triton"), "", "it lacks triton"),
        ({}, "base-trixie", pinned("tini"), "", "it lacks tini"),
        ({"variant": "devel"}, f"wheel-cu130-torch{T130}-py313-devel", r"numpy([-=]+)[0-9.]+", r"numpy\g<1>1.0", f"it has numpy 1.0, but locks/wheel-cu130-torch{T130}-py313.txt has "),
        ({"variant": "pod"}, "unpacked-cutlass-cu130-py313", pinned("nvidia-cutlass"), "", "it has no nvidia-cutlass, but"),
        ({"compat": "with"}, "compat-cu130", pinned("cuda-compat-13-0"), "", "it must pin one package"),
        ({"compat": "with"}, "compat-cu130", "^cuda-compat-13-0=", "cuda-compat-13-1=", "it lacks cuda-compat-13-0"),
        ({"source": "fork"}, "source-fork", pinned("triton"), "", "it lacks triton"),
        ({"source": "fork"}, "source-fork", "git:a58677f", "git:0000000", "it lacks torch@a58677f"),
        ({"source": "fork", "cuda": "12.8"}, "toolkit-cu128", pinned("cuda_nvcc"), "", "it lacks cuda_nvcc"),
    ],
)  # fmt: skip
def test_a_lock_is_complete(
    config: Config,
    copied: Callable[[str, str, str], Path],
    asked: dict[str, str],
    name: str,
    pattern: str,
    new: str,
    problem: str,
) -> None:
    folder = copied(name, pattern, new)
    with pytest.raises(LockError) as caught:
        image_lock(config, choose(config, **asked), folder)
    assert str(caught.value).startswith(f"locks/{name}.txt: {problem}")
    assert str(caught.value).endswith(f"run `invoke lock --select {name}`")


@pytest.mark.parametrize(
    ("pattern", "new", "problem"),
    [
        (pinned("cuda-compat-13-0"), "", "it must pin one package"),
        (pinned("cuda-compat-13-0"), r"\g<0># 1 bytes, ubuntu2404/x86_64/xy_1_amd64.deb\nxy=1 sha256:" + HEX + "\n", "it must pin one package"),
        ("^cuda-compat-13-0=", "cuda-compat-13-1=", "it lacks cuda-compat-13-0"),
        ("^# request: .*", "# request: cuda-compat-12-8", "out of step"),
        ("cuda-compat-13-(0=|0$)", r"cuda-compat-12-\g<1>", "out of step|lacks"),
    ],
)  # fmt: skip
def test_no_other_package_is_taken_for_the_compat_library(
    config: Config,
    copied: Callable[[str, str, str], Path],
    pattern: str,
    new: str,
    problem: str,
) -> None:
    """Its libcuda is loaded by every container; `pick` and the pods reckon with its version."""
    folder = copied("compat-cu130", pattern, new)
    for read in (
        lambda: compat_versions(config, folder),
        lambda: image_lock(config, choose(config, compat="with"), folder),
    ):
        with pytest.raises(LockError, match=problem):
            read()


@pytest.mark.parametrize("names", [(), ("cuda-compat-13-1",), ("cuda-compat-13-0", "xy")])
def test_no_other_package_in_an_images_own_locks_is_taken_for_it(
    config: Config, names: tuple[str, ...]
) -> None:
    """Whoever reproduces an image installs what these name."""
    lock = whole(config, compat="with")
    assert lock.compat
    [deb] = lock.compat.debs
    debs = tuple(dataclasses.replace(deb, name=name, path=f"{name}_1_amd64.deb") for name in names)
    changed = dataclasses.replace(lock, compat=dataclasses.replace(lock.compat, debs=debs))
    with pytest.raises(LockError, match=r"^locks/compat-cu130\.txt: it (?:lacks|must pin one)"):
        parse_image_lock(changed.texts())


def test_a_compat_library_for_another_platform_is_none_of_the_image(config: Config) -> None:
    lock = whole(config, compat="with")
    assert lock.compat
    [deb] = lock.compat.debs
    deb = dataclasses.replace(deb, path=deb.path.replace("_amd64", "_arm64"))
    compat = dataclasses.replace(lock.compat, debs=(deb,), platform=ARM64)
    with pytest.raises(LockError, match="is for linux/amd64, compat-cu130 for linux/arm64"):
        parse_image_lock(dataclasses.replace(lock, compat=compat).texts())


def whole(config: Config, **asked: str) -> ImageLock:
    return image_lock(config, choose(config, **asked), LOCKS)


@pytest.mark.parametrize("name", ["torch", "triton", "numpy"])
def test_the_locks_in_an_image_are_complete(config: Config, name: str) -> None:
    lock = whole(config)
    kept = tuple(w for w in lock.wheels.wheels if w.name != name)
    less = dataclasses.replace(lock, wheels=dataclasses.replace(lock.wheels, wheels=kept))
    with pytest.raises(
        LockError, match=rf"^locks/wheel-cu130-torch{T130}-py313\.txt: it (?:has no|lacks) {name}"
    ):
        parse_image_lock(less.texts())


@pytest.mark.parametrize("word", ["==", "a" * 1001, f"torch=={'9' * 900}.{'9' * 5000}"])
def test_a_request_that_is_none_is_named(config: Config, word: str) -> None:
    wheels = dataclasses.replace(whole(config).wheels, request=(word,))
    with pytest.raises(
        LockError, match=rf"^locks/wheel-cu130-torch{T130}-py313\.txt: it was requested for '"
    ):
        complete.check_wheels(wheels)


def test_a_tree_of_the_users_own_is_complete(config: Config) -> None:
    lock = whole(config, source="fork")
    assert lock.sources
    [torch, triton] = lock.sources.trees
    own = dataclasses.replace(torch, commit="1" * 40)
    sources = dataclasses.replace(lock.sources, trees=(own, triton), unlocked=True)
    assert parse_image_lock(dataclasses.replace(lock, sources=sources).texts()).sources == sources
    with pytest.raises(LockError, match="it lacks torch@"):
        complete.check_sources(dataclasses.replace(sources, unlocked=False))


def test_a_base_that_was_never_resolved_lacks_nothing(config: Config) -> None:
    bare = dataclasses.replace(whole(config).base, image="", debs=(), unlocked=True)
    complete.check_debs(bare)
    with pytest.raises(LockError, match="it lacks "):
        complete.check_debs(dataclasses.replace(bare, unlocked=False))


def test_what_is_not_complete_is_not_written(tmp_path: Path) -> None:
    text = (LOCKS / "tools-build.txt").read_text()
    less = re.sub(pinned("uv"), "", text, flags=re.MULTILINE)
    with pytest.raises(LockError, match=r"^locks/tools-build\.txt: it has no uv"):
        update(tmp_path / "less.txt", parse_wheels(less, "tools-build"))
    assert not (tmp_path / "less.txt").exists()
