"""How git is asked for trees: with which settings, how often, and what its errors mean."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.fakes import FakeRunner, git
from torch_images.config.types import Tree
from torch_images.errors import CommandError, ConfigError, LockError, NetworkError, UsageError
from torch_images.fetch import checkout
from torch_images.host.git import environment
from torch_images.host.network import Network
from torch_images.host.runner import Completed, Runner
from torch_images.locks.sources import LockedTree

URL, COMMIT = "https://host/x", "a" * 40


class Watched(Runner):
    """Runs commands, and remembers them."""

    def __init__(self) -> None:
        self.environments: list[Mapping[str, str | None] | None] = []
        self.commands: list[list[str]] = []

    def run(self, command: Sequence[str], **options: Any) -> Completed:
        self.commands.append(list(command))
        self.environments.append(options.get("env"))
        return super().run(command, **options)


def make_repo(folder: Path, **inner: Path) -> Path:
    """A repository with a file and submodules by path, checked out as in a clone."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "file").write_text(folder.name)
    (folder / "version.txt").write_text("2.13.0a0\n")
    for path, repository in inner.items():
        git(folder, "-c", "protocol.file.allow=always", "clone", "--quiet", str(repository), path)
        git(folder / path, "remote", "set-url", "origin", f"https://nowhere.invalid/{path}")
        for name in repository.iterdir():
            if name.is_dir() and (name / ".git").exists():
                clone = folder / path / name.name
                git(folder, "clone", "--quiet", str(name), str(clone))
                git(clone, "remote", "set-url", "origin", "https://nowhere.invalid/deep")
        for key, value in (("path", path), ("url", "https://no.invalid/")):
            git(folder, "config", "--file", ".gitmodules", f"submodule.{path}.{key}", value)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "x")
    return folder


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two submodules, of which one has one itself."""
    folder = tmp_path_factory.mktemp("repositories")
    deep, plain = make_repo(folder / "deep"), make_repo(folder / "plain")
    return make_repo(folder / "outer", middle=make_repo(folder / "middle", deep=deep), plain=plain)


@pytest.fixture
def nested(template: Path, tmp_path: Path) -> Path:
    """A copy of the repository."""
    return shutil.copytree(template, tmp_path / "outer")


def test_check_out_gives_settings_to_each_command(nested: Path, tmp_path: Path) -> None:
    run, network = Watched(), Network(ca_bundle=tmp_path / "ca")
    tree = LockedTree(
        name="torch", version="1", repository=str(nested), commit=git(nested, "rev-parse", "HEAD")
    )
    folder = checkout.check_out(tree, cache=tmp_path / "cache", network=network, run=run)
    assert folder == tmp_path / f"cache/sources/torch-{tree.commit}/tree"
    for path, text in (("", "outer"), ("middle/", "middle"), ("middle/deep/", "deep")):
        assert (folder / f"{path}file").read_text() == text
    assert (folder / "plain/file").read_text() == "plain"
    assert not list(folder.rglob(".git"))
    assert run.environments == [environment(network)] * len(run.commands)
    fetches = [command for command in run.commands if "fetch" in command]
    assert len(fetches) == 4
    assert all("--depth=1" in command for command in fetches)
    assert fetches[0][-2:] == ["origin", tree.commit]  # it need not be the newest


def test_with_tree_caches_a_local_tree(nested: Path, tmp_path: Path) -> None:
    """Its lock says "local" and no folder, so what is compiled comes from the cache."""
    run, network = Watched(), Network(source_mirror="https://mirror")
    tree = Tree(repository=URL, commit=COMMIT, version="1")
    resolved = checkout.with_tree(
        tree, str(nested), cache=tmp_path, network=network, run=run, obtain=True
    )
    calls = zip(run.environments, run.commands, strict=True)
    assert all(env == environment(network) for env, words in calls if "submodule" in words)
    locked = LockedTree(name="torch", version="1", repository="local", commit=resolved.commit)
    folder = checkout.check_out(locked, cache=tmp_path, network=network, run=run)
    assert (folder / "version.txt").read_text().strip() == resolved.version


class Failing(Runner):
    """A git whose command with a word ends with a message, once or always."""

    def __init__(self, word: str, message: str, times: int = 99, output: str = "") -> None:
        self.word, self.message, self.times, self.output = word, message, times, output
        self.commands: list[list[str]] = []
        self.environments: list[Mapping[str, str | None] | None] = []

    def run(self, command: Sequence[str], **options: Any) -> Completed:
        self.commands.append(list(command))
        self.environments.append(options.get("env"))
        if self.word in command and self.times:
            self.times -= 1
            if options.get("check", True):
                raise CommandError(" ".join(command), 128, self.message)
            return Completed(128, self.message)
        return Completed(0, self.output if "status" in command else "")


def checked_out(tmp_path: Path, run: Runner, repository: str = URL) -> Path:
    tree = LockedTree(name="torch", version="1", repository=repository, commit=COMMIT)
    return checkout.check_out(tree, cache=tmp_path, network=Network(), run=run)


@pytest.mark.parametrize(
    "stderr",
    ["fatal: remote error: upload-pack: not our ref aaaa", "error: pathspec 'aaaa' did not match"],
)
def test_check_out_of_a_missing_commit(tmp_path: Path, stderr: str) -> None:
    with pytest.raises(LockError) as caught:
        checked_out(tmp_path, Failing("fetch", stderr))
    assert str(caught.value) == f"{URL} has no commit {COMMIT}; correct it in images.yaml"
    assert not list((tmp_path / "sources").iterdir())


@pytest.mark.parametrize(("word", "whole"), [("fetch", "--tags"), ("update", "--jobs=8")])
def test_check_out_fetches_all_without_single_commits(
    tmp_path: Path, word: str, whole: str
) -> None:
    run = Failing(word, "no", times=1)
    assert checked_out(tmp_path, run).is_dir()
    first, second = [command for command in run.commands if word in command]
    assert "--depth=1" in first
    assert "--depth=1" not in second
    assert first[:3] == second[:3] == run.commands[0][:3]  # in the same folder
    assert whole in second
    assert run.environments == [environment(Network())] * len(run.commands)
    assert not [command for command in run.commands if "ls-files" in command]  # it is not here


@pytest.mark.parametrize("line", ["-abc sub", "+abc sub (x)", "Uabc sub"])
def test_submodules_that_are_not_those_of_the_commit(tmp_path: Path, line: str) -> None:
    run = Failing("", "", output=f" abc good (x)\n{line}\n")
    with pytest.raises(LockError) as caught:
        checked_out(tmp_path, run)
    assert caught.value.message == f"the submodules of {URL} do not match its commit"
    assert run.commands[-1][3:] == ["submodule", "status", "--recursive"]
    assert not list((tmp_path / "sources").iterdir())
    assert checked_out(tmp_path, Failing("", "", output=" abc good\n b c\n")).is_dir()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("https://u:secret@host/x@abc", "has credentials, which the image would show"),
        ("https://host/x@abc", "names no commit"),
        ("https://host/x", "names no commit"),
        ("/none@abc", "/none has no commit abc"),
        ("/no@n/e", "/no@n/e has no commit at all"),
    ],
)
def test_parse_refuses_invalid_trees(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        checkout.parse(text, FakeRunner({"git": (128, "")}))
    assert "secret" not in str(caught.value)


def test_parse_hides_the_password_of_an_invalid_url() -> None:
    with pytest.raises(ConfigError, match=r"^--torch-source is not a URL; correct it") as caught:
        checkout.parse(f"http://u:p@[::1/x@{COMMIT}", FakeRunner())
    assert "u:p" not in str(caught.value)


def test_parse_and_check_out_end_the_options_of_git(tmp_path: Path) -> None:
    run = FakeRunner({"git": (0, COMMIT)})
    checkout.parse("/x@--git-dir", run)
    assert run.commands[0][-2:] == ["--end-of-options", "--git-dir^{commit}"]
    failing = Failing("", "")
    checked_out(tmp_path, failing)
    assert failing.commands[1][3:] == ["remote", "add", "--", "origin", URL]


def test_work_that_no_commit_has(nested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nested / "file").write_text("later")
    with pytest.raises(UsageError) as caught:
        checkout.parse(str(nested), Runner())
    assert str(caught.value) == (
        f"{nested} has uncommitted changes; commit them, or name the commit to build: "
        f"{nested}@COMMIT"
    )
    head = git(nested, "rev-parse", "HEAD")
    assert checkout.parse(f"{nested}@main", Runner()) == (str(nested), head)
    monkeypatch.setenv("HOME", str(nested.parent))
    assert checkout.parse("~/outer@HEAD", Runner()) == (str(nested), head)


TREE = Tree(repository="https://other", commit="b" * 40, version="1.0")


def with_tree(text: str, cache: Path, run: Runner) -> Tree:
    return checkout.with_tree(TREE, text, cache=cache, network=Network(), run=run)


def test_with_tree_uses_the_cache(tmp_path: Path) -> None:
    folder = tmp_path / f"sources/torch-{COMMIT}/tree"
    folder.mkdir(parents=True)
    run = FakeRunner()
    assert with_tree(f"{URL}@{COMMIT}", tmp_path, run) == Tree(
        repository=URL, commit=COMMIT, version="1.0"
    )
    (folder / "version.txt").write_text("2.13.0a0\n")
    assert with_tree(f"{URL}@{COMMIT}", tmp_path, run) == Tree(
        repository=URL, commit=COMMIT, version="2.13.0a0"
    )
    assert run.commands == []
    for stated in ("nightly", "2.13.0+cu130", "1!2.0", "2." + "1" * 39):
        (folder / "version.txt").write_text(f"{stated}\n")
        with pytest.raises(UsageError, match="has no valid version"):
            with_tree(f"{URL}@{COMMIT}", tmp_path, run)


def test_with_tree_of_a_folder_and_of_a_url(
    nested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = git(nested, "rev-parse", "HEAD")
    assert with_tree(str(nested), tmp_path, Runner()) == Tree(
        repository="local", commit=head, version="2.13.0a0"
    )
    git(nested, "remote", "add", "origin", "https://host/mine")
    assert with_tree(str(nested), tmp_path, Runner()).repository == "https://host/mine"
    for origin in ("https://user:secret@host/mine", "git@host:mine", "https://host/a b", "/x"):
        git(nested, "remote", "set-url", "origin", origin)
        assert with_tree(str(nested), tmp_path, Runner()).repository == "local"
    git(nested, "commit", "--quiet", "--allow-empty", "-m", "newer")
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    run, url = Watched(), f"file://{nested}"
    assert with_tree(f"{url}@{head}", tmp_path, run) == Tree(
        repository=url, commit=head, version="2.13.0a0"
    )
    [fetch] = [command for command in run.commands if "fetch" in command]
    assert "--filter=blob:none" in fetch
    assert fetch[-2:] == ["origin", head]
    assert not [*empty.iterdir()]  # a URL is not taken for a folder here


def test_with_tree_without_a_version_file(nested: Path, tmp_path: Path) -> None:
    git(nested, "rm", "--quiet", "version.txt")
    git(nested, "commit", "--quiet", "-m", "y")
    assert with_tree(str(nested), tmp_path, Runner()).version == "1.0"
    (nested / "version.txt").symlink_to("file")
    git(nested, "add", ".")
    git(nested, "commit", "--quiet", "-m", "z")
    with pytest.raises(UsageError, match="has no valid version: 'file'"):
        with_tree(str(nested), tmp_path, Runner())


def seeded_from(repository: Path, cache: Path) -> list[str]:
    """The folders of this host that a tree's submodules are taken from; one fails."""
    tree = LockedTree(
        name="torch",
        version="1",
        repository=str(repository),
        commit=git(repository, "rev-parse", "HEAD"),
    )
    run = Watched()
    with pytest.raises(NetworkError):
        checkout.check_out(tree, cache=cache, network=Network(), run=run)
    return [command[-1] for command in run.commands if "remote" in command][1:]


def test_a_submodule_behind_a_link_is_not_taken(nested: Path, tmp_path: Path) -> None:
    (nested / "plain").rename(tmp_path / "elsewhere")
    (nested / "plain").symlink_to(tmp_path / "elsewhere")
    assert seeded_from(nested, tmp_path / "cache") == [
        str(nested / "middle"),
        str(nested / "middle/deep"),
    ]
