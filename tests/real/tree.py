"""Debian's source package -> a git repository with one commit, as `sources` takes a tree.

Debian's patches are applied but for one, then those of patches/, whose heads give their reasons. Names, times
and modes are fixed, so the commit is the same everywhere: images.yaml pins it.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
NAME = "debian/pytorch-2.6.0"
# It takes NVTX 2, which CUDA 13 has no more.
LEFT_OUT = "2300-torch-cuda-no-use-nvtx3.patch"
_WHO = {
    **{f"GIT_{who}_NAME": "Debian" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "debian@localhost" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_DATE": "2025-01-29T00:00:00Z" for who in ("AUTHOR", "COMMITTER")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def checked(files: Mapping[str, Path]) -> tuple[Path, Path]:
    """Upstream's tarball and Debian's own, which the .dsc names by the same hashes as inputs.txt."""
    [dsc] = (path for name, path in files.items() if name.endswith(".dsc"))
    stated = re.search(r"^Checksums-Sha256:\n((?: .*\n)+)", dsc.read_text(), re.MULTILINE)
    assert stated
    named = {}
    for line in stated[1].splitlines():
        sha256, _, name = line.split()
        assert hashlib.sha256(files[name].read_bytes()).hexdigest() == sha256
        named[name] = files[name]
    [orig] = (path for name, path in named.items() if ".orig.tar" in name)
    [debian] = (path for name, path in named.items() if ".debian.tar" in name)
    return orig, debian


def make(files: Mapping[str, Path], folder: Path) -> str:
    """Make `folder` a bare repository with the tree, unless it is one already; its commit."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch, "tree")
            _unpack(*checked(files), made)
            _git(made, "init", "--quiet", "--initial-branch=main")
            _git(made, "add", "--all", "--force")
            _git(made, "commit", "--quiet", "--message", "PyTorch 2.6.0 as Debian has it, patched")
            bare = Path(scratch, "bare")
            _git(made, "clone", "--quiet", "--bare", str(made), str(bare))
            bare.rename(folder)
    return _git(folder, "rev-parse", "main").strip()


def change(repository: Path, path: str, old: str, new: str, branch: str) -> str:
    """Add a commit with one file changed to a branch of its own; the commit.

    With an empty `path` nothing is changed but the commit.
    """
    with tempfile.TemporaryDirectory(dir=repository.parent) as scratch:
        work = Path(scratch, "work")
        _git(repository, "clone", "--quiet", "--branch=main", str(repository), str(work))
        if path:
            text = (work / path).read_text()
            assert old in text
            (work / path).write_text(text.replace(old, new, 1))
        _git(work, "commit", "--quiet", "--all", "--allow-empty", "--message", branch)
        _git(work, "push", "--quiet", "--force", "origin", f"HEAD:{branch}")
    return _git(repository, "rev-parse", branch).strip()


def _unpack(orig: Path, debian: Path, tree: Path) -> None:
    tree.mkdir()
    with tarfile.open(orig) as archive:
        archive.extractall(tree, filter="data")
    [top] = tree.iterdir()
    top.rename(tree.with_name("top"))
    tree.rmdir()
    tree.with_name("top").rename(tree)
    with tarfile.open(debian) as archive:
        archive.extractall(tree, filter="data")
    patches = tree / "debian" / "patches"
    names = (patches / "series").read_text().split()
    assert LEFT_OUT in names
    series = [patches / name for name in names if name != LEFT_OUT]
    for patch in (*series, *sorted((HERE / "patches").glob("*.patch"))):
        subprocess.run(
            ["patch", "--quiet", "--strip=1", "--no-backup-if-mismatch", "--directory", tree],
            input=patch.read_bytes(),
            check=True,
        )
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "core.autocrlf=false", "-c", "gc.auto=0", *words]
    env = {**os.environ, **_WHO}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
