"""The base of an image: locked Debian packages -> an OCI layout, or packages to add to an image.

mmdebstrap makes a bootstrapped base on the host, without an image registry. It sees no mirror, but
an archive of exactly the locked packages, so the result depends only on the lock. A layout gets
its final name only when it is complete.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import fcntl
import functools
import hashlib
import http.server
import logging
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch_images.config.types import Base
from torch_images.errors import CommandError, DiskError, LockError, NetworkError
from torch_images.fetch.apt import Resolver, confined, explain, tree_room
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
    `contexts`: named contexts for the build: "base", an OCI layout at its digest, or "debs", the
        folder with the packages to add to an image.
    `digest`: of the build's base image, such as "sha256:..."; "" if there is none.
    """

    lock: DebLock
    contexts: Mapping[str, str]
    digest: str

    @property
    def layout(self) -> Path | None:
        """The OCI layout of a bootstrapped base; None for packages to add to an image."""
        context = self.contexts.get("base", "")
        return Path(context.removeprefix("oci-layout://").rpartition("@")[0]) if context else None


def prepare(
    base: Base,
    lock: DebLock,
    *,
    cache: Path,
    resolver: Resolver,
    locked: bool = False,
    fresh: bool = False,
    present: frozenset[str] | None = None,
) -> ReadyBase:
    """Make a base from its lock, or take it from the cache unless `fresh`.

    `present` are the names of packages that already exist: the lock then has those to add to them.
    None means that the lock is the whole base.
    If no source has a locked package any more, resolves the lock again and logs a warning with the
    changes. With `locked` that is a LockError, or a NetworkError if a source that may have the
    package does not answer. Raises NetworkError, DiskError and BuildError as well.
    """
    if locked and lock.unlocked:
        raise LockError(
            f"locks/{lock.name}.txt was not resolved by `invoke lock`",
            f"run `invoke lock --select {lock.name}` and commit the result",
        )
    bootstraps = bool(base.suite) and present is None
    options = dpkg_options(resolver.root) if bootstraps else ()
    folder = _folder(base, lock, cache, options)
    if fresh or not folder.exists():
        resolved = lock.debs or not lock.unlocked
        fetched = _fetch(base, lock, cache, resolver) if resolved else None
        if fetched and fetched.vanished and (locked or lock.unlocked):
            raise _stale(lock, fetched)
        if not fetched or fetched.vanished:
            lock = _relocked(base, lock, resolver, present or frozenset())
            folder = _folder(base, lock, cache, options)
            fetched = _fetch(base, lock, cache, resolver)
            if fetched.vanished:
                raise _stale(lock, fetched)
        folder.parent.mkdir(exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if fresh or not folder.exists():
                if bootstraps:
                    _bootstrap(base, lock, fetched.files, folder, resolver.run, options=options)
                else:
                    _collect(fetched.files, folder)
    used(folder)
    if not bootstraps:
        digest = lock.image.rpartition("@")[2]
        return ReadyBase(lock=lock, contexts={"debs": str(folder)}, digest=digest)
    digest = oci.layout_digest(folder)
    context = f"oci-layout://{folder}@{digest}"
    return ReadyBase(lock=lock, contexts={"base": context}, digest=digest)


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
    return (
        f"deb http://deb.debian.org/debian {suite} main",
        f"deb http://deb.debian.org/debian {suite}-updates main",
        f"deb http://security.debian.org/debian-security {suite}-security main",
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


def _fetch(base: Base, lock: DebLock, cache: Path, resolver: Resolver) -> Fetched:
    return fetch(
        lock,
        cache / Part.DEBS,
        mirrors=functools.partial(resolver.roots, base),
        snapshot=base.snapshot,
        network=resolver.network,
    )


def _folder(base: Base, lock: DebLock, cache: Path, options: Sequence[str]) -> Path:
    """The folder of a base in the cache, named by a hash over all its inputs."""
    facts = " ".join((oci.BASE_RECIPE, lock.digest, *options))
    return cache / Part.BASES / f"{base.name}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"


def _stale(lock: DebLock, fetched: Fetched) -> LockError | NetworkError:
    """The error for packages that no source has.

    It is a NetworkError if a source did not answer, because that one may have them.
    """
    if fetched.silent:
        return unsettled(fetched.vanished, fetched.silent)
    names = ", ".join(f"{deb.name} {deb.version}" for deb in fetched.vanished)
    return LockError(
        f"locks/{lock.name}.txt: no mirror and no snapshot archive has {names}",
        f"run `invoke lock --select {lock.name}`, or name a mirror that has them with --mirror",
    )


def _relocked(base: Base, lock: DebLock, resolver: Resolver, present: frozenset[str]) -> DebLock:
    """The lock of a base resolved again today, without the packages in `present`.

    Marks it as unlocked, and logs a warning with the changes.
    """
    today = dt.datetime.now(dt.UTC).date()
    fresh = resolver.resolve(lock.name, base, lock.image, today, platform=lock.platform)
    debs = tuple(deb for deb in fresh.debs if deb.name not in present)
    fresh = replace(fresh, debs=debs, unlocked=True)
    lines = changes(lock, fresh) if lock.debs else ("nothing was locked yet",)
    _log.warning(
        "base %s is resolved again, so the image will be marked as unlocked: %s",
        base.name,
        "; ".join(lines),
    )
    return fresh


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
    """Bootstrap a base into an OCI layout at `folder`. Raises LockError, DiskError, BuildError."""
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
            _check_packages(base, lock, tar)
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


def _check_packages(base: Base, lock: DebLock, tar: Path) -> None:
    """Raise LockError unless a tree has exactly the locked packages."""
    from debian.deb822 import Deb822  # as above

    with tarfile.open(tar) as tree:
        status = tree.extractfile("./var/lib/dpkg/status")
        assert status is not None
        installed = {p["Package"]: p["Version"] for p in Deb822.iter_paragraphs(status)}
    locked = lock.versions()
    for name in sorted(installed.keys() | locked.keys()):
        if installed.get(name) != locked.get(name):
            raise LockError(
                f"base {base.name}: {name} was locked as {locked.get(name, 'absent')}, but "
                f"{installed.get(name, 'none')} is installed",
                f"run `invoke lock --select {lock.name}`",
            )


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
