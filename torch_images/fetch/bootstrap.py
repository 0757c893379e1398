"""Locked Debian packages -> the OCI layout of a base, or a folder of packages to add to one.

mmdebstrap makes a base on the host, without an image registry. It sees no mirror, but
an archive of exactly the locked packages, so the result depends only on the lock. A layout gets
its final name only when it is complete.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import fcntl
import hashlib
import http.server
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch_images.config.types import Base
from torch_images.errors import CommandError, DiskError, LockError, NetworkError
from torch_images.fetch.apt import ARCHIVES, Resolver, confined, explain, tree_room
from torch_images.fetch.download import Fetched, fetch, unsettled
from torch_images.host.cache import Part, filling, used
from torch_images.host.loopback import serving
from torch_images.host.runner import Runner
from torch_images.inside.times import EPOCH
from torch_images.locks.debs import DebLock, LockedDeb, changes
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

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReadyBase:
    """A base that is ready for a build.

    `lock`: its lock, which a build without `locked` may have resolved again.
    `layout`: its OCI layout; `digest`: that of its manifest, such as "sha256:...".
    """

    lock: DebLock
    layout: Path
    digest: str

    @property
    def context(self) -> str:
        """The named context of a build."""
        return f"oci-layout://{self.layout}@{self.digest}"


@dataclass(frozen=True, kw_only=True)
class ReadyDebs:
    """Packages to add to a base: their lock, as in `ReadyBase`, and the folder with them."""

    lock: DebLock
    folder: Path


@dataclass(frozen=True, kw_only=True)
class BaseMaker:
    """Makes bases, and folders of packages to add to them, or takes them from a cache.

    If no source has a locked package any more, it resolves the lock again and logs a warning with
    the changes. With `locked` that is a LockError, or a NetworkError if a source that may have the
    package does not answer. `fresh` ignores what is in the cache.
    Its methods raise NetworkError, DiskError and BuildError as well.
    """

    cache: Path
    resolver: Resolver
    locked: bool = False
    fresh: bool = False

    def base(self, base: Base, lock: DebLock) -> ReadyBase:
        """A base from its lock."""
        options = dpkg_options(self.resolver.root)
        run = self.resolver.run

        def make(lock: DebLock, debs: Mapping[LockedDeb, Path], folder: Path) -> None:
            _bootstrap(base, lock, debs, folder, run, options=options)

        lock, folder = self._ready(base, lock, make, options=options)
        return ReadyBase(lock=lock, layout=folder, digest=oci.layout_digest(folder))

    def debs(self, base: Base, lock: DebLock, present: frozenset[str]) -> ReadyDebs:
        """The packages of a lock without those in `present`, which the base has."""

        def make(_: DebLock, debs: Mapping[LockedDeb, Path], folder: Path) -> None:
            _collect(debs, folder)

        lock, folder = self._ready(base, lock, make, present=present)
        return ReadyDebs(lock=lock, folder=folder)

    def _ready(
        self,
        base: Base,
        lock: DebLock,
        make: Callable[[DebLock, Mapping[LockedDeb, Path], Path], None],
        *,
        options: Sequence[str] = (),
        present: frozenset[str] = frozenset(),
    ) -> tuple[DebLock, Path]:
        if self.locked and lock.unlocked:
            raise LockError(
                f"locks/{lock.name}.json was not resolved by `invoke lock`",
                f"run `invoke lock --select {lock.name}` and commit the result",
            )
        folder = self._folder(base, lock, options)
        if self.fresh or not folder.exists():
            fetched = self._fetch(base, lock)
            if fetched.vanished:
                if self.locked or lock.unlocked:
                    raise _stale(lock, fetched)
                lock = self._relocked(base, lock, present)
                folder = self._folder(base, lock, options)
                fetched = self._fetch(base, lock)
                if fetched.vanished:
                    raise _stale(lock, fetched)
            folder.parent.mkdir(exist_ok=True)
            with folder.with_name(f"{folder.name}.lock").open("w") as guard:
                fcntl.flock(guard, fcntl.LOCK_EX)
                if self.fresh or not folder.exists():
                    make(lock, fetched.files, folder)
        return lock, used(folder)

    def _folder(self, base: Base, lock: DebLock, options: Sequence[str]) -> Path:
        """The folder in the cache, named by a hash over all its inputs."""
        facts = " ".join((oci.BASE_RECIPE, lock.digest, *options))
        key = hashlib.sha256(facts.encode()).hexdigest()[:16]
        return self.cache / Part.BASES / f"{base.name}-{key}"

    def _fetch(self, base: Base, lock: DebLock) -> Fetched:
        return fetch(
            lock,
            self.cache / Part.DEBS,
            mirrors=self.resolver.roots,
            snapshot=base.snapshot,
            network=self.resolver.network,
        )

    def _relocked(self, base: Base, lock: DebLock, present: frozenset[str]) -> DebLock:
        """A lock resolved again today and marked as unlocked; logs a warning with the changes."""
        today = dt.datetime.now(dt.UTC).date()
        fresh = self.resolver.resolve(lock.name, base, today, platform=lock.platform)
        debs = tuple(deb for deb in fresh.debs if deb.name not in present)
        fresh = replace(fresh, debs=debs, unlocked=True)
        _log.warning(
            "base %s is resolved again, so the image will be marked as unlocked: %s",
            base.name,
            "; ".join(changes(lock, fresh)),
        )
        return fresh


def dpkg_options(root: Path) -> tuple[str, ...]:
    """The options of dpkg that leave documentation out, such as "path-exclude=/usr/share/doc/*".

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
    # Otherwise the options above would stay in the image and drop files of later packages.
    words += ['--customize-hook=rm -f "$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap']
    # mmdebstrap's own sources would depend on the keys that this host's apt trusts.
    lines = " ".join(f"'{line}'" for line in apt_sources(base.suite))
    words += [f"--customize-hook=printf '%s\\n' {lines} >\"$1\"/etc/apt/sources.list"]
    # Locked hashes replace a signature.
    return [*words, base.suite, str(target), f"deb [trusted=yes] {repository} {base.suite} main"]


def apt_sources(suite: str) -> tuple[str, ...]:
    """The lines of an image's sources.list: the archives of Debian for a suite."""
    main, security = ARCHIVES
    return (
        f"deb {main} {suite} main",
        f"deb {main} {suite}-updates main",
        f"deb {security} {suite}-security main",
    )


def kept(path: str) -> bool:
    """Whether a path of the bootstrapped tree, such as "etc/passwd", belongs in the image."""
    return not _DROPPED.fullmatch(path)


def repository(
    suite: str, debs: Mapping[LockedDeb, Path], platform: Platform = AMD64
) -> dict[str, bytes]:
    """The index files of an apt repository with exactly these packages of a platform.

    The keys are paths below the repository's root. Raises LockError for a package that is damaged,
    or whose name or version differs from its lock.
    """
    from torch_images.locks.debfile import control  # takes 20 ms, once for each base

    stanzas = []
    for deb, path in sorted(debs.items()):
        stanza = control(deb, path)
        stanza["Filename"] = f"pool/{deb.sha256}.deb"
        stanza["Size"] = str(path.stat().st_size)
        stanza["SHA256"] = deb.sha256
        stanzas.append(stanza.dump())
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


def _stale(lock: DebLock, fetched: Fetched) -> LockError | NetworkError:
    """The error for packages that no source has.

    It is a NetworkError if a source did not answer, because that one may have them.
    """
    if fetched.silent:
        return unsettled(fetched.vanished, fetched.silent)
    names = ", ".join(f"{deb.name} {deb.version}" for deb in fetched.vanished)
    return LockError(
        f"locks/{lock.name}.json: no mirror and no snapshot archive has {names}",
        f"run `invoke lock --select {lock.name}`, or name a mirror in TORCH_IMAGES_MIRROR",
    )


def _collect(debs: Mapping[LockedDeb, Path], folder: Path) -> None:
    """Fill `folder` with the packages to add to an image, each under its own file name."""
    with filling(folder) as new:
        for deb, path in debs.items():
            shutil.copyfile(path, new / deb.filename)
        shutil.rmtree(folder, ignore_errors=True)


def _bootstrap(
    base: Base,
    lock: DebLock,
    debs: Mapping[LockedDeb, Path],
    folder: Path,
    run: Runner,
    *,
    options: Sequence[str],
) -> None:
    """Bootstrap a base into an OCI layout at `folder`. Raises DiskError or BuildError."""
    with (
        tree_room(run) as temporary,
        filling(folder) as layout,
        _served(repository(base.suite, debs, lock.platform), debs) as url,
    ):
        tar, layer = temporary / "tree.tar", layout.parent / "layer"
        env: dict[str, str | None] = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy"))
        env |= {"SOURCE_DATE_EPOCH": str(EPOCH), "LC_ALL": "C.UTF-8", "TMPDIR": str(temporary)}
        old_mask = os.umask(0o022)
        try:
            run.run(confined(command(base, lock, tar, url, options), run), env=env)
            with layer.open("wb") as stream:
                oci.normalise(tar, stream, keep=kept)
        except CommandError as error:
            raise explain(f"base {base.name}", base.suite, error) from None
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise DiskError(
                f"the disk filled up while making base {base.name}", "free some space"
            ) from None
        finally:
            os.umask(old_mask)
        history = f"mmdebstrap --variant=minbase {base.suite}"
        oci.write_layout(layout, layer, history=history, env=_ENV, platform=lock.platform)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _served(indexes: Mapping[str, bytes], debs: Mapping[LockedDeb, Path]) -> Iterator[str]:
    """Serve a repository on loopback; yields its URL.

    A rootless bootstrap runs as another user, who cannot read our files, but can use HTTP.
    """
    files = {f"/pool/{deb.sha256}.deb": path for deb, path in debs.items()}
    texts = {f"/{path}": data for path, data in indexes.items()}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = files.get(self.path)
            data = path.read_bytes() if path else texts.get(self.path)
            self.send_response(404 if data is None else 200)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, *_: object) -> None:
            """Keep apt's requests out of the output."""

    with serving(Handler) as url:
        yield url
