"""Git repositories -> source trees: one commit with all its submodules, without history.

A tree appears in the cache under its final name whole or not at all. Git checks every object
against its name on the way, so whoever serves a commit serves the right one.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from torch_images.cached import keep, used
from torch_images.config import Tree
from torch_images.errors import CommandError, LockError, NetworkError, UsageError
from torch_images.load import COMMIT
from torch_images.network import Network
from torch_images.runner import Runner
from torch_images.sources import LockedTree

_PARALLEL = 8  # submodules fetched side by side


def check_out(wanted: LockedTree, *, cache: Path, network: Network, run: Runner) -> Path:
    """The folder with a tree, from the cache or its repository.

    It is the only thing in the folder above, which BuildKit can be given: at the top of a context,
    a tree's own .dockerignore would have a say.
    Raises NetworkError where the repository cannot be asked, LockError where it lacks the commit.
    """
    folder = cache / "sources" / f"{wanted.name}-{wanted.commit}"
    if folder.exists():
        return used(folder) / "tree"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{wanted.name}-") as scratch:
        made = Path(scratch, "made")
        tree = made / "tree"
        env = _environment(wanted.repository, Path(scratch, "config"), network, run)
        git = ["git", "-C", str(tree)]
        try:
            made.mkdir()
            run.run(["git", "init", "--quiet", str(tree)], env=env)
            run.run([*git, "remote", "add", "origin", wanted.repository], env=env)
            shallow = [*git, "fetch", "--quiet", "--depth=1", "origin", wanted.commit]
            # Not every server gives single commits.
            if run.run(shallow, env=env, check=False).code:
                run.run([*git, "fetch", "--quiet", "--tags", "origin"], env=env)
            run.run([*git, "checkout", "--quiet", "--detach", wanted.commit], env=env)
            update = [*git, "submodule", "--quiet", "update", "--init", "--recursive"]
            update.append(f"--jobs={_PARALLEL}")
            if run.run([*update, "--depth=1"], env=env, check=False).code:
                run.run(update, env=env)
            status = run.run([*git, "submodule", "status", "--recursive"], env=env).output
        except CommandError as error:
            raise _problem(wanted, error) from None
        if any(line[0] != " " for line in status.splitlines()):
            raise LockError(f"the submodules of {wanted.repository} are not those of its commit")
        for history in [*tree.rglob(".git")]:
            shutil.rmtree(history) if history.is_dir() else history.unlink()
        keep(made, folder)
    return folder / "tree"


def parse(text: str, run: Runner) -> tuple[str, str]:
    """Repository and commit of what a user names: PATH, PATH@COMMIT or URL@COMMIT.

    Raises UsageError for a URL without a whole commit, and for a folder whose work is not
    committed or that is no repository.
    """
    where, _, commit = text.rpartition("@") if re.search(r"@[^/:]*$", text) else (text, "", "")
    if "://" in where:
        if urlsplit(where).username is not None:
            raise UsageError(
                f"'{where.partition('://')[0]}://...' has credentials, which an image would carry",
                "leave them to git's credential helpers",
            )
        if not COMMIT.fullmatch(commit):
            raise UsageError(
                f"'{text}' names no commit", "add @ and the whole commit, 40 hexadecimal digits"
            )
        return where, commit
    folder = Path(where).expanduser().resolve()
    git = ["git", "-C", str(folder)]
    found = run.run([*git, "rev-parse", "--verify", f"{commit or 'HEAD'}^{{commit}}"], check=False)
    if found.code:
        raise UsageError(f"{folder} has no commit {commit or 'at all'}", "name a git repository")
    if not commit and run.run([*git, "status", "--porcelain"]).output.strip():
        raise UsageError(
            f"{folder} has changes that no commit has",
            f"commit them, or name the commit to build: {where}@COMMIT",
        )
    return str(folder), found.output.strip()


def with_tree(tree: Tree, text: str, *, cache: Path, network: Network, run: Runner) -> Tree:
    """The tree that a user names in place of another; its version is what its files say.

    Raises UsageError, NetworkError or LockError.
    """
    repository, commit = parse(text, run)
    named = replace(tree, repository=repository, commit=commit)
    locked = LockedTree(name="torch", version="0", repository=repository, commit=commit)
    folder = check_out(locked, cache=cache, network=network, run=run)
    if "://" not in repository:  # an image does not tell where on this host
        named = replace(named, repository=_origin(repository, run))
    stated = folder / "version.txt"
    return replace(named, version=stated.read_text().strip()) if stated.exists() else named


def _origin(folder: str, run: Runner) -> str:
    """Where a local repository was cloned from, if that is a public address; else "local"."""
    command = ["git", "-C", folder, "config", "remote.origin.url"]
    url = run.run(command, check=False).output.strip()
    return url if re.fullmatch(r"https://[^@\s]+", url) else "local"


def _environment(
    repository: str, config: Path, network: Network, run: Runner
) -> Mapping[str, str | None]:
    """Git's environment: the user's own settings, then ours, for submodules as well."""
    lines = [f"[include]\n\tpath = {Path.home()}/.gitconfig", "[core]\n\tautocrlf = false"]
    lines.append("[advice]\n\tdetachedHead = false")
    if "://" not in repository:
        lines.append('[protocol "file"]\n\tallow = always')
        # What is checked out there need not be fetched from elsewhere.
        command = 'printf "%s %s\\n" "$(git config remote.origin.url)" "$PWD"'
        each = ["git", "-C", repository, "submodule", "--quiet", "foreach", "--recursive", command]
        for line in run.run(each, check=False).output.splitlines():
            url, _, folder = line.partition(" ")
            lines.append(f'[url "{folder}"]\n\tinsteadOf = {url}')
    elif network.source_mirror:
        lines.append(f'[url "{network.source_mirror}/"]\n\tinsteadOf = https://')
    config.write_text("\n".join(lines) + "\n")
    return {
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
        **({"GIT_SSL_CAINFO": str(network.ca_bundle)} if network.ca_bundle else {}),
    }


def _problem(wanted: LockedTree, error: CommandError) -> Exception:
    """The user's view of a git that failed."""
    text = " ".join(error.output.split())
    if re.search(
        r"not our ref|bad object|unable to read tree|reference is not a tree|unadvertised|"
        r"did not contain|pathspec",
        text,
    ):
        return LockError(
            f"{wanted.repository} has no commit {wanted.commit}", "correct it in images.yaml"
        )
    if re.search(r"ENOSPC|No space left", text):
        return error
    return NetworkError(
        f"{wanted.repository} could not be cloned: {text[-200:]}",
        "check network and proxy, or name a mirror in TORCH_IMAGES_SOURCE_MIRROR, or a folder "
        "with --torch-source",
    )
