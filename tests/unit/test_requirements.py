"""What a user's project requires: pip's format, and pyproject.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_images.config.own import Own
from torch_images.errors import LockError
from torch_images.locks.requirements import Asked, of_project, of_text, request

LINUX = {"sys_platform": "linux", "python_version": "3.13", "python_full_version": "3.13.5"}
SHA = "a" * 64


def asked(folder: Path, text: str) -> Asked:
    return of_text(text, "requirements.txt", LINUX, folder)


def names(asked: Asked) -> list[str]:
    return [str(one) for one in asked.requirements]


def test_requirements(tmp_path: Path) -> None:
    text = """\
        # a comment
        einops>=0.8  # another
        pywin32; sys_platform == "win32"
        tomli ; python_version < "3.11"
        rich[jupyter]==14.1 \\
            --hash=sha256:AAA \\
            --hash=sha256:BBB
        --only-binary :all:
        """.replace("AAA", SHA).replace("BBB", "b" * 64)
    found = asked(tmp_path, text)
    assert names(found) == ["einops>=0.8", "rich[jupyter]==14.1"]
    assert found.hashes == {"rich": frozenset({SHA, "b" * 64})}
    assert not found.itself


def test_included_files(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more/base.txt").write_text("einops\n-r deep.txt\n")
    (tmp_path / "more/deep.txt").write_text("rich\n")
    (tmp_path / "limits.txt").write_text("numpy<3\n")
    found = asked(tmp_path, "-r more/base.txt\n--constraint=limits.txt\n.\n")
    assert names(found) == ["einops", "rich"]
    assert [str(one) for one in found.constraints] == ["numpy<3"]
    assert found.itself


@pytest.mark.parametrize(
    ("line", "noun"),
    [
        ("einops @ https://example.org/einops.whl", "no hash"),
        ("git+https://example.org/einops", "no hash"),
        ("einops @ git+https://example.org/einops@v1", "no hash"),
        ("./wheels/einops.whl", "no hash"),
        ("-e ../other", "no hash"),
        ("--extra-index-url https://user:secret@example.org/simple", "--extra-index-url"),
        ("--pre", "--pre"),
        ("einops>=", "not a requirement"),
        ("-r absent.txt", "no absent.txt"),
        ("-r ../absent.txt", "outside"),
        ("-r requirements.txt", "includes itself"),
    ],
)
def test_refused_line(tmp_path: Path, line: str, noun: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"rich\n{line}\n")
    with pytest.raises(LockError) as caught:
        asked(tmp_path, f"rich\n{line}\n")
    assert noun in str(caught.value)
    assert "secret" not in str(caught.value)


@given(st.text())
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    try:
        asked(tmp_path_factory.mktemp("any"), text)
    except LockError as error:
        assert "\n" not in str(error)


PROJECT = """\
[project]
name = "My_App"
dependencies = ["einops", "pywin32; sys_platform == 'win32'"]
[project.optional-dependencies]
serve = ["fastapi"]
[dependency-groups]
dev = ["pytest", {include-group = "serve"}]
lint = ["ruff"]
"""


def project(folder: Path, text: str = PROJECT, **values: Any) -> Own:
    (folder / "pyproject.toml").write_text(text)
    return Own(name="app", root=folder, requirements="pyproject.toml", **values)


def test_project(tmp_path: Path) -> None:
    own = project(tmp_path, extras=("serve",), groups=("lint",))
    found = of_project(own, LINUX)
    assert names(found) == ["einops", "fastapi", "ruff"]
    assert not found.itself


@pytest.mark.parametrize(
    ("more", "itself"),
    [
        ('[build-system]\nrequires = ["hatchling"]', True),
        ('[build-system]\nrequires = ["hatchling"]\n[tool.uv]\npackage = false', False),
        ("[tool.uv]\npackage = true", True),
    ],
)
def test_project_is_a_package(tmp_path: Path, more: str, itself: bool) -> None:
    assert of_project(project(tmp_path, f"{PROJECT}{more}\n"), LINUX).itself is itself


@pytest.mark.parametrize(
    ("values", "noun"),
    [
        ({"extras": ("absent",)}, "extra"),
        ({"groups": ("absent",)}, "group"),
        ({"groups": ("dev",)}, "group"),
    ],
)
def test_refused_project(tmp_path: Path, values: dict[str, Any], noun: str) -> None:
    with pytest.raises(LockError, match=noun):
        of_project(project(tmp_path, **values), LINUX)


def test_source_of_its_own_is_refused(tmp_path: Path) -> None:
    """The index may have another package of the same name."""
    more = '[tool.uv.sources]\nEinops = { git = "https://example.org/einops" }\n'
    with pytest.raises(LockError, match="Einops"):
        of_project(project(tmp_path, PROJECT + more), LINUX)


@pytest.mark.parametrize(
    "text", ["project = 1", "[tool]\nuv = 1", "[project]\noptional-dependencies = []"]
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(LockError, match="must be a table"):
        of_project(project(tmp_path, text), LINUX)


def test_dynamic_dependencies(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="dynamic"):
        of_project(project(tmp_path, '[project]\nname = "a"\ndynamic = ["dependencies"]\n'), LINUX)


def test_request_changes_with_what_it_is_resolved_from(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r more.txt  # and more\n")
    (tmp_path / "more.txt").write_text("einops\n")
    own = Own(name="app", root=tmp_path, requirements="requirements.txt")
    before = request(own)
    assert request(own) == before
    (tmp_path / "more.txt").write_text("rich\n")
    assert request(own) != before


def test_request_of_a_project_ignores_other_tables(tmp_path: Path) -> None:
    before = request(project(tmp_path))
    assert request(project(tmp_path, f"{PROJECT}[tool.ruff]\nline-length = 100\n")) == before
    assert request(project(tmp_path, PROJECT.replace("einops", "rich"))) != before
