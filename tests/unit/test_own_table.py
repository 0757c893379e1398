"""The table of a user's own image, and the files that it names."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_images.build import context_file
from torch_images.build.context_file import own_checks, own_files
from torch_images.config.choose import choose_id, choose_images, choose_named, choose_own
from torch_images.config.own import FILE, SHARED, Own, find, load
from torch_images.config.types import Config
from torch_images.errors import ConfigError, TorchImagesError, UsageError

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLES = sorted((DOCS / "examples/own").iterdir())
WHOLE = """\
name = "ghcr.io/me/my-app"
cuda = "13.0"
arch = ["12.0"]
requirements = "requirements.txt"
packages = ["ffmpeg"]
files = {"src" = "/app/src"}
command = ["python", "-m", "my_app"]
folder = "/app"
environment = {"HF_HOME" = "/data"}
ports = [8000]
checks = "tests/image"
"""
WRONG = (
    "name = ",
    'nam = "app"',
    'cuda = "13.0"',
    'name = "My_App"',
    'name = "a b"',
    'name = "app"\ncuda = 13.0',
    'name = "app"\narch = "12.0"',
    'name = "app"\nrequirments = "requirements.txt"',
    'name = "app"\nrequirements = "../requirements.txt"',
    'name = "app"\nrequirements = "/etc/passwd"',
    'name = "app"\nfiles = {"src" = "app"}',
    'name = "app"\nfiles = {"../src" = "/app"}',
    'name = "app"\nfiles = {"src" = "/opt/venv/lib"}',
    'name = "app"\nfiles = {"src" = "/app/../etc"}',
    'name = "app"\npackages = ["ffmpeg-"]',
    'name = "app"\ncommand = []',
    'name = "app"\ncommand = "python"',
    'name = "app"\nports = [99999]',
    'name = "app"\ncompat = "auto"',
    'name = "app"\nroot = "/"',
)


def written(folder: Path, text: str, name: str = FILE) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def made(folder: Path, **values: object) -> Own:
    return Own(name="app", root=folder, **values)  # type: ignore[arg-type]


def test_read_table(tmp_path: Path) -> None:
    own = load(written(tmp_path, WHOLE))
    assert (own.repository, own.namespace) == ("my-app", "ghcr.io/me")
    assert own.axes["arch"] == "12.0"
    assert own.files == (("src", "/app/src"),)
    assert own.root == tmp_path


def test_read_table_of_pyproject(tmp_path: Path) -> None:
    path = written(tmp_path, '[project]\nname = "x"\n[tool.torch-images]\nname = "app"\n', SHARED)
    assert find(tmp_path) == path
    assert load(path).name == "app"


def test_files_that_are_no_table(tmp_path: Path) -> None:
    """A pyproject.toml of any folder is read at each start."""
    assert find(tmp_path) is None
    for text in ("tool = 1\n", '[project]\nname = "x"\n'):
        written(tmp_path, text, SHARED)
        assert find(tmp_path) is None
    (tmp_path / FILE).write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(tmp_path / FILE)


def test_two_tables(tmp_path: Path) -> None:
    written(tmp_path, WHOLE)
    written(tmp_path, '[tool.torch-images]\nname = "app"\n', SHARED)
    with pytest.raises(ConfigError, match="exclude each other"):
        find(tmp_path)


def test_wrong_tables(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    lines = []
    for text in WRONG:
        with pytest.raises(ConfigError) as caught:
            load(written(tmp_path, text))
        lines.append(f"{text}\n    {caught.value}\n")
    golden("own-tables.txt", "\n".join(lines))


@given(st.text())
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("table") / FILE
    path.write_text(text, encoding="utf-8", errors="ignore")
    try:
        load(path)
    except ConfigError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_example(folder: Path, real: Config) -> None:
    """It is of an image that exists, and its page links it."""
    file = find(folder)
    assert file
    own = load(file)
    assert choose_own(dataclasses.replace(real, own=own)).release.facts
    own_files(own, package=False)
    assert f"](examples/own/{folder.name})" in (DOCS / "own.md").read_text()


@pytest.fixture
def mine(config: Config, tmp_path: Path) -> Config:
    return dataclasses.replace(config, own=load(written(tmp_path, WHOLE)))


def test_choose_own_image(mine: Config) -> None:
    spec = choose_own(mine)
    assert choose_images(mine, "", {}) == (spec,)
    assert choose_id(mine, "my-app") == choose_named(mine, "my-app:latest") == spec
    assert (spec.id, spec.repository, spec.arches) == ("my-app", "my-app", ("12.0",))
    assert spec.command == ("python", "-m", "my_app")
    assert (spec.variant.folder, spec.variant.ports) == ("/app", (8000,))


def test_choose_own_image_with_an_axis(mine: Config) -> None:
    with pytest.raises(UsageError, match="cuda"):
        choose_images(mine, "", {"cuda": "12.8"})


def test_other_images_stay(mine: Config, config: Config) -> None:
    [spec] = choose_images(config, "", {"cuda": "13.0"})
    assert choose_id(mine, spec.id) == spec


def test_pod_starts_its_services_first(mine: Config) -> None:
    assert mine.own
    pod = dataclasses.replace(mine, own=dataclasses.replace(mine.own, variant="pod", arch=()))
    spec = choose_own(pod)
    assert spec.command == ("pod-start", "python", "-m", "my_app")
    assert set(spec.variant.ports) == {22, 8888, 8000}


def test_own_files(tmp_path: Path) -> None:
    (tmp_path / "src/__pycache__").mkdir(parents=True)
    (tmp_path / "src/__pycache__/a.pyc").touch()
    (tmp_path / "src/a.py").write_text("a")
    (tmp_path / "run").write_text("b")
    (tmp_path / "run").chmod(0o700)
    (tmp_path / "link").symlink_to("run")
    files = own_files(made(tmp_path, files=(("src", "/app"), ("link", "/bin/run"))), package=False)
    assert [(f.path, f.data, f.executable) for f in files] == [
        ("own/files/app/a.py", b"a", False),
        ("own/files/bin/run", b"b", True),
    ]


def test_own_package(tmp_path: Path) -> None:
    for name in (".venv/x", ".git/x", "build/x", "a.egg-info/x", "src/a.py", "torch-images.lock"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    files = own_files(made(tmp_path), package=True)
    assert [file.path for file in files] == ["own/tree/src/a.py"]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def outside(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def above(path: Path) -> None:
    path.mkdir()
    (path / "again").symlink_to("..")


def absent(path: Path) -> None:
    (path.parent / "other").touch()


def large(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(5_000_000_000)


@pytest.mark.parametrize(
    ("make", "noun"),
    [
        (fifo, "has no file src"),
        (outside, "leads out of"),
        (above, "link to a folder above"),
        (absent, "has no file src"),
        (large, "256 MB"),
    ],
)
def test_wrong_own_files(tmp_path: Path, make: Callable[[Path], None], noun: str) -> None:
    make(tmp_path / "src")
    with pytest.raises(UsageError, match=noun):
        own_files(made(tmp_path, files=(("src", "/app"),)), package=False)


def test_files_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_file, "_MOST", 10)
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 6)
    own_files(made(tmp_path, files=(("a", "/a"),)), package=False)
    with pytest.raises(TorchImagesError):
        own_files(made(tmp_path, files=(("a", "/a"), ("b", "/b"))), package=False)


def test_own_checks(tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks/test_a.py").write_text("a")
    assert own_checks(made(tmp_path, checks="checks")) == {"test_a.py": b"a"}
    assert own_checks(made(tmp_path)) == {}
