"""Locked Debian packages -> the OCI layout of a base, or a folder of packages to add to one.

mmdebstrap makes a base on the host, without an image registry. It sees no mirror, but
an archive of exactly the locked packages, so the result depends only on the lock. A layout gets
its final name only when it is complete.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from torch_images.config.types import Base
from torch_images.errors import CommandError, LockError
from torch_images.fetch.apt import ARCHIVES, Resolver, confined, explain, tree_room
from torch_images.fetch.download import fetch
from torch_images.host.cache import Part, filling, used
from torch_images.host.runner import Runner
from torch_images.host.workspace import alone
from torch_images.inside.times import EPOCH
from torch_images.locks.debs import DebLock, LockedDeb
from torch_images.oci import layout as oci
from torch_images.platforms import AMD64, Platform

# The whole environment of a base.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_ENV = (f"PATH={PATH}",)

# Options of dpkg that leave documentation out, for the bootstrap and for builds.
_DOCUMENTATION = Path("scripts", "image", "build", "documentation.dpkg")

# Files of a bootstrap that are state of this host, or differ from run to run.
_DROPPED = re.compile(
    r"""
    etc/(?:hostname|resolv\.conf|(?:passwd|shadow|group|gshadow)-)
    | var/(?:log|cache/apt|cache/debconf|lib/apt/lists)/.+
    | var/cache/ldconfig/aux-cache
    | (?:dev|run|tmp|var/tmp)/.+
    | var/lib/dpkg/(?:status|diversions|statoverride)-old
    | .+/__pycache__(?:/.+)?
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, kw_only=True)
class ReadyBase:
    """A base that is ready for a build: its OCI layout, and the digest of its manifest."""

    layout: Path
    digest: str

    @property
    def context(self) -> str:
        """The named context of a build."""
        return f"oci-layout://{self.layout}@{self.digest}"


@dataclass(frozen=True, kw_only=True)
class BaseMaker:
    """Makes bases, and folders of packages to add to them, or takes them from a cache.

    `fresh` ignores what is in the cache. Its methods raise as `fetch` does, and BuildError.
    """

    cache: Path
    resolver: Resolver
    fresh: bool = False

    def base(self, base: Base, lock: DebLock) -> ReadyBase:
        """A base from its lock."""
        options = dpkg_options(self.resolver.root)

        def make(debs: Mapping[LockedDeb, Path], folder: Path) -> None:
            _bootstrap(base, lock, debs, folder, self.resolver.run, options=options)

        folder = self._cached(base, lock, make, options)
        return ReadyBase(layout=folder, digest=oci.layout_digest(folder))

    def has(self, base: Base, lock: DebLock) -> bool:
        """Whether the cache has a base, by an earlier build or from a release of this project."""
        return (
            not self.fresh and self._folder(base, lock, dpkg_options(self.resolver.root)).exists()
        )

    def layer(self, base: Base, lock: DebLock) -> str | None:
        """The diff id of a base's only layer; None if the cache lacks the base."""
        folder = self._folder(base, lock, dpkg_options(self.resolver.root))
        return oci.layout_diff_ids(folder)[0] if folder.exists() else None

    def debs(self, base: Base, lock: DebLock) -> Path:
        """A folder with the packages of a lock, each under its own file name."""

        def make(debs: Mapping[LockedDeb, Path], folder: Path) -> None:
            for deb, path in debs.items():
                shutil.copyfile(path, folder / deb.filename)

        return self._cached(base, lock, make)

    def _cached(
        self,
        base: Base,
        lock: DebLock,
        make: Callable[[Mapping[LockedDeb, Path], Path], None],
        options: Sequence[str] = (),
    ) -> Path:
        """The folder of a lock, which `make` fills with its packages unless the cache has it."""
        folder = self._folder(base, lock, options)
        if self.fresh or not folder.exists():
            debs = fetch(
                lock,
                self.cache / Part.DEBS,
                mirrors=self.resolver.roots(),
                snapshot=base.snapshot,
                network=self.resolver.network,
            )
            folder.parent.mkdir(exist_ok=True)
            with alone(folder.with_name(f"{folder.name}.lock")):
                if self.fresh or not folder.exists():
                    with filling(folder) as new:
                        make(debs, new)
                        shutil.rmtree(folder, ignore_errors=True)
        return used(folder)

    def _folder(self, base: Base, lock: DebLock, options: Sequence[str]) -> Path:
        facts = " ".join((oci.BASE_RECIPE, lock.digest, *options))
        key = hashlib.sha256(facts.encode()).hexdigest()[:16]
        return self.cache / Part.BASES / f"{base.name}-{key}"


def dpkg_options(root: Path) -> tuple[str, ...]:
    """The options of dpkg that leave documentation out, e.g. "path-exclude=/usr/share/doc/*".

    They are from scripts/image/build/documentation.dpkg below the project's folder `root`, which
    install-packages reads in a build. Their order matters: the last one that matches a path wins.
    """
    text = (root / _DOCUMENTATION).read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


def command(
    base: Base, lock: DebLock, target: Path, repository: str, options: Sequence[str]
) -> list[str]:
    """The mmdebstrap command that makes `target`, a tar, only from the packages at a URL.

    `options` are dpkg's, see `dpkg_options`.
    """
    words = ["mmdebstrap", "--variant=minbase", "--format=tar"]
    words += [f"--architectures={lock.platform.architecture}"]
    # All packages by name: the variant itself depends on priorities that only a mirror knows.
    words += [f"--include={','.join(deb.name for deb in lock.debs)}"]
    words += [f"--dpkgopt={option}" for option in options]
    words += ["--dpkgopt=force-unsafe-io"]  # a tree that is cut short is thrown away
    # Otherwise the options above would stay in the image and drop files of later packages.
    words += ['--customize-hook=rm -f "$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap']
    # mmdebstrap's own sources would depend on the keys that this host's apt trusts.
    main, security = ARCHIVES
    sources = ((main, ""), (main, "-updates"), (security, "-security"))
    lines = " ".join(f"'deb {url} {base.suite}{pocket} main'" for url, pocket in sources)
    words += [f"--customize-hook=printf '%s\\n' {lines} >\"$1\"/etc/apt/sources.list"]
    # Locked hashes replace a signature.
    return [*words, base.suite, str(target), f"deb [trusted=yes] {repository} {base.suite} main"]


def kept(path: str) -> bool:
    """Whether a path of the bootstrapped tree, e.g. "etc/passwd", belongs in the image."""
    return not _DROPPED.fullmatch(path)


def repository(
    suite: str, debs: Mapping[LockedDeb, Path], run: Runner, platform: Platform = AMD64
) -> dict[str, bytes]:
    """The index files of an apt repository with exactly these packages of a platform.

    The keys are paths below the repository's root. Raises CommandError for a damaged package, and
    LockError for one whose name or version differs from its lock: apt could read another name as an
    expression, or as a package to remove.
    """
    stanzas = []
    for deb, path in sorted(debs.items()):
        fields = run.run(["dpkg-deb", "--field", str(path)]).output.rstrip("\n").split("\n")
        if not {f"Package: {deb.name}", f"Version: {deb.version}"} <= {*fields}:
            raise LockError(f"{deb.filename} is not {deb.name} {deb.version}, as it was locked")
        fields += [f"Filename: pool/{deb.sha256}.deb", f"Size: {path.stat().st_size}"]
        stanzas.append("\n".join([*fields, f"SHA256: {deb.sha256}\n"]))
    packages = "\n".join(stanzas).encode()
    architecture = platform.architecture
    folder = f"main/binary-{architecture}"
    release = (
        f"Suite: {suite}\nCodename: {suite}\nArchitectures: {architecture}\n"
        "Components: main\nSHA256:\n"
        f" {hashlib.sha256(packages).hexdigest()} {len(packages)} {folder}/Packages\n"
    )
    return {
        f"dists/{suite}/Release": release.encode(),
        f"dists/{suite}/{folder}/Packages": packages,
    }


def _bootstrap(
    base: Base,
    lock: DebLock,
    debs: Mapping[LockedDeb, Path],
    layout: Path,
    run: Runner,
    *,
    options: Sequence[str],
) -> None:
    """Bootstrap a base into an OCI layout. Raises BuildError, or DiskError."""
    with tree_room(run) as temporary:
        tar, layer, archive = temporary / "tree.tar", layout.parent / "layer", temporary / "archive"
        env = {"SOURCE_DATE_EPOCH": str(EPOCH), "LC_ALL": "C.UTF-8", "TMPDIR": str(temporary)}
        # mmdebstrap starts `python3` for each package that it unpacks: the system's own, because a
        # version manager's script in its place takes longer than Python itself.
        env["PATH"] = f"{PATH}:{os.environ.get('PATH', PATH)}"
        old_mask = os.umask(0o022)
        try:
            # A copy: a rootless bootstrap runs as another user, who cannot enter the cache.
            for name, data in repository(base.suite, debs, run, lock.platform).items():
                (archive / name).parent.mkdir(parents=True, exist_ok=True)
                (archive / name).write_bytes(data)
            (archive / "pool").mkdir()
            for deb, path in debs.items():
                shutil.copyfile(path, archive / "pool" / f"{deb.sha256}.deb")
            address = f"copy://{quote(str(archive))}"
            run.run(confined(command(base, lock, tar, address, options), run), env=env)
            with layer.open("wb") as stream:
                oci.normalise(tar, stream, keep=kept)
        except CommandError as error:
            raise explain(f"base {base.name}", base.suite, error) from None
        finally:
            os.umask(old_mask)
        history = f"mmdebstrap --variant=minbase {base.suite}"
        oci.write_layout(layout, layer, history=history, env=_ENV, platform=lock.platform)
