"""Git repositories -> source trees: one commit with all its submodules, without history.

A tree gets its final name in the cache only when it is complete. Git checks every object that it
fetches against the object's name, so any server will do. No code of a tree runs here, and no link
is followed out of the tree.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from packaging.version import Version

from torch_images.config.fields import COMMIT
from torch_images.config.types import Tree
from torch_images.errors import CommandError, DiskError, LockError, NetworkError, UsageError
from torch_images.host.cache import Part, filling, used
from torch_images.host.diagnose import Diagnosis, refusal
from torch_images.host.git import environment
from torch_images.host.network import Network, check_url
from torch_images.host.runner import Completed, Runner
from torch_images.locks.files import is_version
from torch_images.locks.sources import LockedTree

_PARALLEL = 8  # submodules fetched in parallel
_VERSION_FILE = "version.txt"
_LONGEST_VERSION = 40  # characters; a tag has at most 128, and has more parts
_LARGEST_FILE = 65536  # bytes of a file that is read here; these files have a line or two

# Messages of git.
_PROBLEMS = (
    Diagnosis(
        r"not our ref|bad object|unable to read tree|reference is not a tree|not a tree object|"
        r"unadvertised|did not contain|pathspec",
        LockError,
        "{repository} has no commit {commit}",
        "correct it in images.yaml",
    ),
    Diagnosis(
        r"ENOSPC|No space left",
        DiskError,
        "the disk filled up while cloning {repository}",
        "free some space",
    ),
    Diagnosis(
        r"transport '(?P<kind>\w+)' not allowed",
        LockError,
        "a submodule of {repository} is not on the network: its address is of type {kind}",
        "check it out in a clone, and name that folder with --torch-source",
    ),
    Diagnosis(
        "",
        NetworkError,
        "{repository} could not be cloned: {message}",
        "check network and proxy, or name a mirror in TORCH_IMAGES_SOURCE_MIRROR, or a folder "
        "with --torch-source",
    ),
)


@dataclass(frozen=True)
class _Git:
    """Runs git in a folder. Raises CommandError if `check` is set and it fails."""

    run: Runner
    env: Mapping[str, str | None]

    def __call__(self, folder: Path, *words: str, check: bool = True) -> Completed:
        return self.run.run(["git", "-C", str(folder), *words], env=self.env, check=check)


def check_out(locked: LockedTree, *, cache: Path, network: Network, run: Runner) -> Path:
    """The folder with a tree, from the cache or its repository.

    The parent folder contains nothing else and can be a build context. The tree itself cannot,
    because BuildKit would obey its .dockerignore. Raises NetworkError if the repository is
    unreachable, and LockError if it lacks the commit.
    """
    folder = _folder(locked, cache)
    if folder.exists():
        return used(folder) / "tree"
    git = _Git(run, environment(network))
    with filling(folder) as new:
        tree = new / "tree"
        try:
            _obtain(git, tree, locked.repository, locked.commit)
            git(tree, "checkout", "--quiet", "--detach", locked.commit)
            if "://" not in locked.repository:
                _seed(git, tree, Path(locked.repository))
            update = ["submodule", "--quiet", "update", "--init", "--recursive"]
            update.append(f"--jobs={_PARALLEL}")
            if git(tree, *update, "--depth=1", check=False).code:
                git(tree, *update)
            status = git(tree, "submodule", "status", "--recursive").output
        except CommandError as error:
            raise _problem(error, locked.repository, locked.commit) from None
        if not all(line.startswith(" ") for line in status.splitlines()):
            raise LockError(f"the submodules of {locked.repository} do not match its commit")
        for history in [*tree.rglob(".git")]:
            shutil.rmtree(history) if history.is_dir() else history.unlink()
    return folder / "tree"


def read_file(tree: Path, name: str) -> str | None:
    """The text of a file of a tree, of which it reads the beginning; None if it is missing.

    Raises LockError for a link that leads out of the tree.
    """
    path = os.path.realpath(tree / name)
    if not Path(path).is_relative_to(os.path.realpath(tree)):
        raise LockError(f"{name} of {tree.parent.name} is a link out of the tree")
    try:
        with open(path, "rb") as stream:  # noqa: PTH123
            return stream.read(_LARGEST_FILE).decode(errors="replace")
    except FileNotFoundError:
        return None


def parse(text: str, run: Runner) -> tuple[str, str]:
    """Repository and commit from a user's text: PATH, PATH@COMMIT or URL@COMMIT.

    Raises UsageError for a URL without a full commit or with credentials, for a folder that is not
    a repository, and for a repository with uncommitted changes.
    """
    where, _, commit = text.rpartition("@") if re.search(r"@[^/:]*$", text) else (text, "", "")
    if "://" in where:
        check_url("--torch-source", where)
        if urlsplit(where).username is not None:
            raise UsageError(
                f"'{where.partition('://')[0]}://...' has credentials, which the image would show",
                "leave them to git's credential helpers",
            )
        if not COMMIT.fullmatch(commit):
            raise UsageError(
                f"'{text}' names no commit", "add @ and the whole commit, 40 hexadecimal digits"
            )
        return where, commit
    folder = Path(where).expanduser().resolve()
    git, revision = _Git(run, environment()), f"{commit or 'HEAD'}^{{commit}}"
    resolved = git(folder, "rev-parse", "--verify", "--end-of-options", revision, check=False)
    if resolved.code:
        raise UsageError(f"{folder} has no commit {commit or 'at all'}", "name a git repository")
    if not commit and git(folder, "status", "--porcelain").output.strip():
        raise UsageError(
            f"{folder} has uncommitted changes",
            f"commit them, or name the commit to build: {where}@COMMIT",
        )
    return str(folder), resolved.output.strip()


def with_tree(
    tree: Tree, text: str, *, cache: Path, network: Network, run: Runner, obtain: bool = False
) -> Tree:
    """The tree that a user names instead of `tree`, with the version in its own files.

    Checks it out only if `obtain` is set, and only after checking its version. Raises
    NetworkError, LockError, or UsageError, also for a version that no image can have.
    """
    repository, commit = parse(text, run)
    chosen = replace(tree, repository=repository, commit=commit)
    locked = LockedTree(name="torch", version="0", repository=repository, commit=commit)
    folder = _folder(locked, cache)
    if folder.exists():
        content = read_file(folder / "tree", _VERSION_FILE)
    else:
        content = _version_text(repository, commit, network, run)
    if content is not None:
        chosen = replace(chosen, version=_version(content, text))
    if obtain:
        check_out(locked, cache=cache, network=network, run=run)
    if "://" not in repository:  # an image must not contain a path of this host
        chosen = replace(chosen, repository=_origin(repository, run))
    return chosen


def _folder(locked: LockedTree, cache: Path) -> Path:
    return cache / Part.SOURCES / f"{locked.name}-{locked.commit}"


def _obtain(git: _Git, folder: Path, source: str, commit: str, *options: str) -> None:
    """Make a repository at `folder` with `commit`, fetched from `source`. Raises CommandError."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet")
    git(folder, "remote", "add", "--", "origin", source)
    fetch = ["fetch", "--quiet", *options]
    # Not every server supports fetching single commits.
    if git(folder, *fetch, "--depth=1", "origin", commit, check=False).code:
        git(folder, *fetch, "--tags", "origin")


def _seed(git: _Git, tree: Path, local: Path) -> None:
    """Fill a tree with the submodules that are checked out in a local repository.

    Then they need not be fetched from their servers. Skips paths with a link, which could lead to
    any repository of this host. Raises CommandError.
    """
    for entry in git(tree, "ls-files", "-z", "--stage").output.split("\0"):
        facts, _, path = entry.partition("\t")
        ours, theirs = tree / path, local / path
        if not facts.startswith("160000 ") or not _inside(ours, tree) or not _inside(theirs, local):
            continue
        commit = facts.split()[1]
        if not os.path.lexists(theirs / ".git"):
            continue  # it is not checked out there
        if git(theirs, "cat-file", "-e", f"{commit}^{{commit}}", check=False).code:
            continue
        _obtain(git, ours, str(theirs), commit)
        git(ours, "checkout", "--quiet", "--detach", commit)
        _seed(git, ours, theirs)


def _inside(path: Path, folder: Path) -> bool:
    """Whether a path has no link below a folder."""
    real = Path(os.path.realpath(folder))
    return Path(os.path.realpath(path)) == real / path.relative_to(folder)


def _version_text(repository: str, commit: str, network: Network, run: Runner) -> str | None:
    """The content of the version file of a commit; None if the commit lacks it.

    Checks nothing out. Fetches as little as possible from a repository at a URL.
    """
    git = _Git(run, environment(network))
    with tempfile.TemporaryDirectory(prefix="torch-images-") as scratch:
        try:
            folder = Path(scratch if "://" in repository else repository)
            if "://" in repository:
                _obtain(git, folder, repository, commit, "--filter=blob:none")
            if not git(folder, "ls-tree", commit, _VERSION_FILE).output:
                return None
            return git(folder, "cat-file", "blob", f"{commit}:{_VERSION_FILE}").output
        except CommandError as error:
            raise _problem(error, repository, commit) from None


def _version(content: str, text: str) -> str:
    """The version in a version file. Raises UsageError if it is invalid in wheels and tags."""
    version = content.strip()
    if len(version) <= _LONGEST_VERSION and is_version(version):
        parsed = Version(version)
        if str(parsed) == version and not parsed.epoch and not parsed.local:
            return version
    raise UsageError(
        f"{_VERSION_FILE} of {text} has no valid version: {version[:_LONGEST_VERSION]!r}",
        "write one such as 2.13.0a0 (PEP 440, in its normal form, without + and !)",
    )


def _origin(folder: str, run: Runner) -> str:
    """The https URL that a local repository was cloned from; "local" if it has none."""
    git = _Git(run, environment())
    url = git(Path(folder), "config", "remote.origin.url", check=False).output.strip()
    return url if re.fullmatch(r"https://[^@\s]+", url) else "local"


def _problem(error: CommandError, repository: str, commit: str) -> Exception:
    return refusal(_PROBLEMS, error.output, repository=repository, commit=commit)
