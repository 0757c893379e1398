"""tests/image/installed.py: a file that is not what its package says is found by name."""

from __future__ import annotations

import hashlib
import io
import py_compile
import tarfile
from pathlib import Path

import pytest
import zstandard

from tests.image import installed
from tests.wheels import make_wheel
from torch_images.config.types import Removal
from torch_images.layers.make import write_layer
from torch_images.layers.plan import LayerPlan

FILES = {
    "tool/__init__.py": b"",
    "tool/core.py": b"VALUE = 1\n",
    "tool/tests/test_it.py": b"assert True\n",
    "tool/a,b.txt": b"a comma in its name",
    "tool-1.0.data/scripts/old": b"#!python\nprint(1)\n",
    "tool-1.0.data/data/share/tool.txt": b"text",
    "tool-1.0.dist-info/entry_points.txt": b"[console_scripts]\ntool = tool:main\n",
}
SITE = "opt/venv/lib/python3.11/site-packages"


NOTHING_ELSE: dict[str, list[str]] = {"unchanged": [], "packages": [], "bytecode": []}


def by_layer(folder: Path, root: Path) -> Path:
    """The wheel in the way of an image's layers; its site-packages."""
    wheel = folder / make_wheel(folder, "tool", "1.0", FILES).locked.filename
    removal = Removal(wheels=("tool",), reason="r", files=("tool/tests/*",))
    blob = io.BytesIO()
    plan = LayerPlan(title="tool", wheels=(), python="3.11", removals=(removal,))
    write_layer(plan, [wheel], blob)
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(blob.getvalue())
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        # Debian 12's Python 3.11.2 has no argument for it.
        archive.extraction_filter = lambda member, _: member
        archive.extractall(root)  # noqa: S202  our own
    return root / SITE


@pytest.fixture
def site(tmp_path: Path) -> Path:
    place = tmp_path / "root"
    place.mkdir()
    return by_layer(tmp_path, place)


def wrong(site: Path) -> list[str]:
    claims, problems = installed.wheels(site)
    return problems + installed.differences(claims)


def test_wheel_problems_of_a_changed_byte(site: Path) -> None:
    (site / "tool/core.py").write_bytes(b"VALUE = 2\n")
    assert wrong(site) == [f"{site}/tool/core.py has other content"]


MD5 = {  # the one digest that dpkg keeps
    name: hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
    for name in ("a", "conf", "doc", "sh")
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with a package `one` for amd64, and `two`, which has diverted a file of `one`."""
    info = tmp_path / "var/lib/dpkg/info"
    info.mkdir(parents=True)
    for path, text in {
        "usr/bin/a": "a",
        "etc/one.conf": "conf",
        "bin/sh.distrib": "sh",
        "usr/share/doc/one/copyright": "doc",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "bin/sh").symlink_to("dash")
    (info / "one:amd64.list").write_text(
        "/.\n/usr/bin/a\n/etc/one.conf\n/bin/sh\n/usr/share/doc/one/copyright\n"
        "/usr/share/doc/one/changelog.gz\n"
    )
    (info / "one:amd64.md5sums").write_text(
        f"{MD5['a']}  usr/bin/a\n{MD5['sh']}  bin/sh\n{MD5['doc']}  usr/share/doc/one/copyright\n"
        f"{'0' * 32}  usr/share/doc/one/changelog.gz\n"
    )
    (info / "two.list").write_text("/.\n/bin/sh\n")
    (info.parent / "diversions").write_text("/bin/sh\n/bin/sh.distrib\ntwo\n")
    (info.parent / "status").write_text(
        "Package: two\nStatus: install ok installed\n\n"
        f"Package: one\nConffiles:\n /etc/one.conf {MD5['conf']}\n /etc/gone {'0' * 32} obsolete\n"
        "Description: x\n"
    )
    return tmp_path


def deb_problems(root: Path, *packages: str) -> list[str]:
    claims, problems = installed.debs(root, packages)
    return problems + installed.differences(claims)


def test_debian_files_are_as_their_packages_say(root: Path) -> None:
    assert deb_problems(root, "one", "two") == []


@pytest.mark.parametrize("path", ["usr/bin/a", "etc/one.conf", "bin/sh.distrib"])
def test_deb_problems_of_a_changed_file(root: Path, path: str) -> None:
    size = (root / path).stat().st_size
    (root / path).write_text("x" * size)
    assert deb_problems(root, "one", "two") == [f"{root}/{path} has other content"]


@pytest.fixture(params=["m.py", "target.default.json.py"])
def module(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A module with the bytecode that compile-bytecode gives it; one name has several dots."""
    source = tmp_path / str(request.param)
    source.write_text("VALUE = 1\n")
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    return source


def test_bytecode_of_the_source_beside_it(module: Path) -> None:
    assert installed.stale_bytecode(module.parent, {}) == []


def test_stale_bytecode_of_another_source(module: Path) -> None:
    module.write_text("VALUE = 2\n")
    [cached] = module.parent.rglob("*.pyc")
    problem = f"{cached} was compiled from another source"
    assert installed.stale_bytecode(module.parent, {}) == [problem]
    assert installed.stale_bytecode(module.parent, {str(cached): 1}) == []  # a wheel's own


def test_a_file_whose_record_is_known_to_be_wrong(site: Path, root: Path) -> None:
    """Its publisher changed it later. It must then be the file that is known, and no other."""
    later = b"VALUE = 3\n"

    def problems(content: bytes, name: str = "tool/core.py") -> list[str]:
        (site / "tool/core.py").write_bytes(content)
        known = f"{hashlib.sha256(later).hexdigest()} {len(later)} {name}"
        question = {"sites": [str(site)], "changed": [known], **NOTHING_ELSE}
        return installed.answer(question, root)["wheels"]

    before = (site / "tool/core.py").read_bytes()
    assert problems(later) == []
    assert problems(before) == [f"{site}/tool/core.py has other content"]
    assert problems(before, "tool/nobody-has-this.py") == []


def test_stale_bytecode_that_each_start_would_check(module: Path) -> None:
    py_compile.compile(str(module), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    [cached] = module.parent.rglob("*.pyc")
    [problem] = installed.stale_bytecode(module.parent, {})
    assert problem == f"{cached} is not marked as unchecked bytecode of this Python"


@pytest.mark.parametrize("name", ["tool-1.0.dist-info", "other-1.0.dist-info"])
def test_files_of_an_unchanged_wheel_are_not_read(site: Path, root: Path, name: str) -> None:
    (site / "tool/core.py").write_bytes(b"VALUE = 2\n")
    question = {"sites": [str(site)], "changed": [], **NOTHING_ELSE, "unchanged": [name]}
    problems = installed.answer(question, root)["wheels"]
    assert problems == [f"{site}/tool/core.py has other content"] * (name != "tool-1.0.dist-info")
