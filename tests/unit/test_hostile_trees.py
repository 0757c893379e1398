"""Trees that somebody else wrote: real git, and nothing that they hold runs or leaves its place."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.servers import web_server
from tests.unit.fakes import git, invoke, workspace_of
from tests.unit.hostile import almost
from torch_images.build.build import revision
from torch_images.errors import (
    LockError,
    TorchImagesError,
)
from torch_images.fetch import checkout, toolchain
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.locks.sources import LockedTree

INFO = '{"llvm_hash": "%s", "build_number": %s, "sha256sum": {"ubuntu-x64": "%s"}}'
HOOK = "./hook.sh"
# Each would end the name of a section of git's configuration, or its line, and begin another.
PATHS = [
    f'a"] [core] fsmonitor = {HOOK} #',
    f"a\n[core]\n\tfsmonitor = {HOOK}\n#",
    "-c core.fsmonitor=./hook.sh",
]


def commit(folder: Path) -> str:
    git(folder, "commit", "--quiet", "--all", "--message=x")
    return git(folder, "rev-parse", "HEAD")


def make_repo(folder: Path, **files: str) -> Path:
    """A repository with one commit."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    for name, text in {"file": folder.name, **files}.items():
        (folder / name).write_text(text)
    git(folder, "add", ".")
    commit(folder)
    return folder


def submodule(outer: Path, path: str, inner: Path, url: str, **more: str) -> None:
    """Record a submodule and check it out, as a clone of `outer` would have it."""
    git(outer, "clone", "--quiet", str(inner), str(outer / path))
    git(outer / path, "remote", "set-url", "--", "origin", url)
    head = git(inner, "rev-parse", "HEAD")
    git(outer, "update-index", "--add", "--cacheinfo", f"160000,{head},{path}")
    for key, value in {"path": path, "url": url, **more}.items():
        git(outer, "config", "--file", ".gitmodules", f"submodule.x.{key}", value)
    git(outer, "add", ".gitmodules")
    git(outer, "config", "submodule.x.url", url)
    commit(outer)


def hooked(folder: Path, marker: Path) -> Path:
    """A repository with a program that must never run."""
    script = f"#!/bin/sh\ntouch '{marker}'\n"
    outer = make_repo(folder, **{"hook.sh": script})
    (outer / "hook.sh").chmod(0o755)
    commit(outer)
    return outer


def check_out(repository: str | Path, cache: Path, head: str = "") -> Path:
    head = head or git(Path(repository), "rev-parse", "HEAD")
    tree = LockedTree(name="torch", version="1", repository=str(repository), commit=head)
    return checkout.check_out(tree, cache=cache, network=Network(), run=Runner())


@pytest.mark.parametrize("path", PATHS)
def test_check_out_of_any_submodule_path(tmp_path: Path, path: str) -> None:
    marker, inner = tmp_path / "ran", make_repo(tmp_path / "inner")
    outer = hooked(tmp_path / "outer", marker)
    submodule(outer, path, inner, "https://nowhere.invalid/inner")
    try:
        folder = check_out(outer, tmp_path / "cache")
        assert (folder / path / "file").read_text() == "inner"
    except TorchImagesError as error:  # git itself takes no newline, nor a dash, in front
        assert path.startswith("-") or "\n" in path, error
        assert "\n" not in str(error)
    assert not marker.exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "https://nowhere.invalid/x", "update": "!touch RAN"},
        {"url": "ext::sh -c touch% RAN"},
        {"url": "--upload-pack=touch RAN"},
        {"url": "ssh://-oProxyCommand=touch${IFS}RAN/x"},
    ],
)
def test_check_out_runs_nothing_of_gitmodules(
    tmp_path: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, outer = make_repo(tmp_path / "inner"), make_repo(tmp_path / "outer")
    marker = tmp_path / "ran"
    words = {key: text.replace("RAN", str(marker)) for key, text in settings.items()}
    submodule(outer, "sub", inner, **words)
    copy = tmp_path / "copy"  # without the submodule, which its address must give then
    git(tmp_path, "clone", "--quiet", str(outer), str(copy))
    (tmp_path / "config").write_text('[protocol "ext"]\n\tallow = always\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    with pytest.raises(TorchImagesError) as caught:
        check_out(copy, tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not marker.exists()


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("allowed", [False, True])
def test_check_out_refuses_local_submodules(
    tmp_path: Path, scheme: str, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a named folder that has it not checked out, and of a URL alike."""
    inner, outer = make_repo(tmp_path / "private"), make_repo(tmp_path / "outer")
    submodule(outer, "sub", inner, f"{scheme}{inner}")
    copy = tmp_path / "copy"
    git(tmp_path, "clone", "--quiet", str(outer), str(copy))
    if allowed:  # by the user's own settings, for trees that the user trusts
        (tmp_path / "config").write_text('[protocol "file"]\n\tallow = always\n')
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    head = git(outer, "rev-parse", "HEAD")
    for repository in (copy, f"file://{copy}"):
        with pytest.raises(LockError, match="is not on the network: its address is of type file;"):
            check_out(repository, tmp_path / "cache", head)


def test_hooks_and_monitors_of_the_user_do_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are for the user's own work, and may run what lies in a tree."""
    marker, hooks = tmp_path / "ran", tmp_path / "hooks"
    outer = hooked(tmp_path / "outer", marker)
    inner = hooked(tmp_path / "inner", marker)
    submodule(outer, "sub", inner, "https://nowhere.invalid/inner")
    hooks.mkdir()
    for name in ("post-checkout", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\n{HOOK}\n")
        (hooks / name).chmod(0o755)
    (tmp_path / "config").write_text(f"[core]\n\thooksPath = {hooks}\n\tfsmonitor = {HOOK}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    checkout.parse(str(outer), Runner())
    folder = check_out(outer, tmp_path / "cache")
    assert (folder / "sub/file").read_text() == "inner"
    assert not marker.exists()


def test_the_repository_that_git_is_at_work_in_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook of git's has GIT_DIR and GIT_INDEX_FILE set, and may start a build."""
    mine, outer = make_repo(tmp_path / "mine"), make_repo(tmp_path / "outer")
    before = git(mine, "rev-parse", "HEAD"), git(mine, "config", "--local", "--list")
    monkeypatch.setenv("GIT_DIR", str(mine / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(mine))
    monkeypatch.setenv("GIT_INDEX_FILE", str(mine / ".git/index"))
    repository, head = checkout.parse(str(outer), Runner())
    with monkeypatch.context() as plain:
        for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
            plain.delenv(name)
        assert head == git(outer, "rev-parse", "HEAD")
    folder = check_out(repository, tmp_path / "cache", head)
    assert (folder / "file").read_text() == "outer"
    assert revision(workspace_of(outer, tmp_path / "cache"), Runner()) == head
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name)
    assert before == (git(mine, "rev-parse", "HEAD"), git(mine, "config", "--local", "--list"))
    assert git(mine, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llvm-hash.txt", "../../evil"),
        ("json-version.txt", "../../../../evil"),
        ("llvm-info.json", "[" * 60000),
        ("llvm-info.json", INFO % ("a" * 40, '"/../x"', "b" * 64)),
        ("llvm-info.json", INFO % ("a" * 40, "1", "b\\n")),
    ],
)
def test_downloads_refuse_malformed_files_of_triton(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "cmake").mkdir()
    (tmp_path / "cmake/llvm-hash.txt").write_text("0" * 40)
    (tmp_path / "cmake/json-version.txt").write_text("v3.11.3\n")
    assert len(list(toolchain._downloads(tmp_path))) == 2
    (tmp_path / "cmake" / name).write_text(text)
    with pytest.raises(LockError, match=rf"cmake/{name} of "):
        list(toolchain._downloads(tmp_path))


def test_archive_compares_each_digit_of_a_hash(tmp_path: Path) -> None:
    data = b"llvm"
    sha256 = hashlib.sha256(data).hexdigest()
    with web_server({"/llvm": data}) as (url, _):

        def archive(stated: str) -> str:
            file = ("llvm", "1", f"{url}/llvm", stated)
            return toolchain._archive(*file, cache=tmp_path, network=Network()).sha256

        assert archive(sha256) == sha256
        with pytest.raises(LockError, match="not the file that Triton names"):
            archive(almost(sha256))


def test_dry_run_neither_runs_nor_writes(root: Path, tmp_path: Path) -> None:
    marker, cache = tmp_path / "ran", tmp_path / "cache"
    inner, outer = make_repo(tmp_path / "inner"), hooked(tmp_path / "outer", marker)
    (outer / "version.txt").write_text("2.13.0a0")
    git(outer, "add", ".")
    submodule(outer, PATHS[0], inner, "https://nowhere.invalid/inner")
    words = ["build", "--dry-run", "--source", "fork", "--arch", "12.0", "--torch-source"]
    for where in (str(outer), f"file://{outer}@{git(outer, 'rev-parse', 'HEAD')}"):
        done = invoke(root, *words, where, TORCH_IMAGES_CACHE=str(cache))
        assert done.returncode == 0, done.stderr
        assert "2.13.0a0-sm120-fork-runtime-" in done.stdout
    assert not cache.exists()
    assert not marker.exists()
