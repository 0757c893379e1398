from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.releases import T128, T130
from torch_images.errors import CommandError, LockError, NetworkError, TorchImagesError
from torch_images.fetch.resolve import Requirements, resolve
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.locks.wheels import (
    LockedWheel,
    WheelLock,
    best_wheel,
    format_wheels,
    parse_wheels,
    read_wheels,
)

names = st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,8}){0,2}", fullmatch=True)


@st.composite
def wheels(draw: st.DrawFn) -> LockedWheel:
    """A wheel whose file name says what it is."""
    name = draw(names)
    version = draw(st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}", fullmatch=True))
    tag = draw(st.sampled_from(["py3-none-any", "py2.py3-none-any", "1-cp38-abi3-linux_x86_64"]))
    return LockedWheel(
        name=name,
        version=version,
        filename=f"{name.replace('-', '_')}-{version}-{tag}.whl",
        size=draw(st.integers(0, 10**10)),
        sha256=draw(st.from_regex(r"[0-9a-f]{64}", fullmatch=True)),
        index=draw(st.sampled_from(["", "https://index.example/whl/cu128", "http://127.0.0.1:1"])),
    )


locks = st.builds(
    WheelLock,
    name=st.just("x"),
    request=st.lists(names, unique=True).map(sorted).map(tuple),
    date=st.dates(datetime.date(1980, 1, 1)),
    python=st.sampled_from(["3.11", "3.12"]),
    wheels=st.lists(wheels(), unique_by=lambda w: w.name).map(sorted).map(tuple),
)


@given(locks)
def test_reads_what_it_writes(lock: WheelLock) -> None:
    assert parse_wheels(format_wheels(lock), "x") == lock


@given(locks, st.randoms())
def test_the_order_of_wheels_does_not_matter(lock: WheelLock, random: object) -> None:
    shuffled = list(lock.wheels)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    other = dataclasses.replace(lock, wheels=tuple(shuffled))
    assert (format_wheels(other), other.digest) == (format_wheels(lock), lock.digest)


@given(st.text())
def test_other_text_is_one_line(text: str) -> None:
    with pytest.raises(LockError) as caught:
        parse_wheels(text, "x")
    assert str(caught.value).startswith("locks/x.txt")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", [f"wheel-cu130-torch{T130}-py313", f"wheel-cu128-torch{T128}-py311", "tools-build"]
)
def test_the_projects_locks_pin_one_hash_each(root: Path, name: str) -> None:
    lock = read_wheels(root / "locks" / f"{name}.txt")
    assert lock.wheels
    assert len({w.name for w in lock.wheels}) == len(lock.wheels)
    assert all(best_wheel((w.filename,), lock.python) == w.filename for w in lock.wheels)


def test_a_missing_lock(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="does not exist; run `invoke lock --select none`"):
        read_wheels(tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("files", "best"),
    [
        (("a-1-py3-none-any.whl", "a-1-cp311-cp311-manylinux_2_28_x86_64.whl"), 1),
        (("a-1-cp311-cp311-manylinux_2_17_x86_64.whl", "a-1-cp311-cp311-win_amd64.whl"), 0),
        (("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", "a-1-3-cp311-cp311-manylinux_2_28_x86_64.whl"), 1),
        (("a-1-cp39-abi3-manylinux2014_x86_64.whl", "a-1-cp312-cp312-manylinux_2_28_x86_64.whl"), 0),
        (("a-1-cp311-cp311-manylinux_2_37_x86_64.whl", "a-1-cp311-cp311-musllinux_1_2_x86_64.whl"), None),
        (("nonsense.whl", "a-1.tar.gz"), None),
    ],
)  # fmt: skip
def test_best_wheel(files: tuple[str, ...], best: int | None) -> None:
    assert best_wheel(files, "3.11") == (None if best is None else files[best])
    assert best_wheel(files[::-1], "3.11") == (None if best is None else files[best])


class Failing(Runner):
    def __init__(self, output: str) -> None:
        self.output = output

    def run(self, command: object, **_: object) -> object:  # type: ignore[override]
        raise CommandError(str(command), 2, self.output)


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("error: Failed to fetch: `x`\n  Caused by: error sending request for url", NetworkError),
        ("  x No solution found when resolving dependencies: a==9", LockError),
    ],
)
def test_a_failed_resolution_is_one_line(output: str, kind: type[TorchImagesError]) -> None:
    with pytest.raises(kind) as caught:
        resolve(
            Requirements(name="x", words=("a",), python="3.11", date=datetime.date(2026, 1, 1)),
            network=Network(),
            run=Failing(output),
        )
    assert "\n" not in str(caught.value)
