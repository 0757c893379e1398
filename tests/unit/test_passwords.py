"""Passwords of mirrors and indexes in no command line: every user of a machine can read those."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import hashlib
import os
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.loopback import serving
from tests.unit.fakes import invoke
from torch_images.cli import verb
from torch_images.config.lock_requests import BaseRequest, WheelRequest
from torch_images.config.types import Config
from torch_images.errors import ConfigError, LockError
from torch_images.fetch import apt
from torch_images.fetch.apt import Resolver, without_users
from torch_images.fetch.checkout import check_out
from torch_images.fetch.resolve import resolve as resolve_wheels
from torch_images.host.git import environment
from torch_images.host.network import Network, split_user
from torch_images.host.runner import Runner
from torch_images.locks.sources import LockedTree

WORD = "hunter22"
TODAY = datetime.date(2026, 2, 3)


class Watcher:
    """A server for one user, which looks at all command lines each time that it is asked."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.seen: list[bytes] = []
        self.lookups: list[str] = []

    @contextlib.contextmanager
    def serve(self) -> Iterator[str]:
        this = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                for path in Path("/proc").glob("[0-9]*/cmdline"):
                    with contextlib.suppress(OSError):  # it has ended
                        this.seen.append(path.read_bytes())
                sent = (self.headers["Authorization"] or "").removeprefix("Basic ")
                known = base64.b64decode(sent) == f"me:{WORD}".encode()
                this.lookups += [self.path] * known
                data = this.files.get(self.path.partition("?")[0]) if known else None
                self.send_response(200 if data is not None else 404 if known else 401)
                if not known:
                    self.send_header("WWW-Authenticate", 'Basic realm="x"')
                self.send_header("Content-Length", str(len(data or b"")))
                self.end_headers()
                self.wfile.write(data or b"")

        with serving(Handler) as url:
            yield url.replace("://", f"://me:{WORD}@")


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    watcher = Watcher()
    yield watcher
    assert watcher.lookups, "no password came"
    assert not [line for line in watcher.seen if WORD.encode() in line]


def test_git_and_what_it_starts(watcher: Watcher, tmp_path: Path) -> None:
    """`git remote-https URL` has the mirror's URL among its words."""
    work, bare = tmp_path / "work", tmp_path / "bare.git"
    run = Runner()
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(work)]
    work.mkdir()
    (work / "file").write_text("content")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        run.run([*git, *words], env=environment())
    commit = run.run([*git, "rev-parse", "HEAD"]).output.strip()
    run.run(["git", "clone", "-q", "--bare", str(work), str(bare)])
    run.run(["git", "-C", str(bare), "update-server-info"])
    watcher.files = {
        f"/git.example/x.git/{path.relative_to(bare)}": path.read_bytes()
        for path in bare.rglob("*")
        if path.is_file()
    }
    tree = LockedTree(
        name="torch", version="1", repository="https://git.example/x.git", commit=commit
    )
    with watcher.serve() as url:
        folder = check_out(tree, cache=tmp_path / "c", network=Network(source_mirror=url), run=run)
    assert (folder / "file").read_text() == "content"


def test_environment_hides_the_password_of_a_mirror_from_helpers() -> None:
    """It might write it to a file, as `git config credential.helper store` does."""
    variables = environment(Network(source_mirror="https://me:hunter%2022@host:1/x"), {})
    count = int(variables["GIT_CONFIG_COUNT"] or "")
    settings = [
        (variables[f"GIT_CONFIG_KEY_{n}"], variables[f"GIT_CONFIG_VALUE_{n}"]) for n in range(count)
    ]
    assert settings[-3] == ("url.https://host:1/x/.insteadOf", "https://")
    assert settings[-2] == ("credential.https://host:1.helper", "")
    assert settings[-1][0] == "credential.https://host:1.helper"
    assert variables["TORCH_IMAGES_PASSWORD"] == f"{WORD[:-2]} 22"
    assert "hunter" not in str(settings)


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("mmdebstrap"), reason="needs root and mmdebstrap"
)
def test_apt_of_a_bootstrap(watcher: Watcher, config: Config, root: Path) -> None:
    names, suite = ("tini", "apt", "dpkg"), "bookworm"
    packages = "\n".join(
        f"Package: {name}\nVersion: 1\nArchitecture: amd64\nPriority: required\nEssential: yes\n"
        f"Filename: pool/{name}_1_amd64.deb\nSize: 3\nSHA256: {'0' * 64}\n"
        for name in names
    ).encode()
    release = (
        f"Label: Debian\nCodename: {suite}\nArchitectures: amd64\nComponents: main\nSHA256:\n"
        f" {hashlib.sha256(packages).hexdigest()} {len(packages)} main/binary-amd64/Packages\n"
    )
    dists = f"/debian/dists/{suite}"
    watcher.files = {f"{dists}/Release": release.encode()}
    watcher.files[f"{dists}/main/binary-amd64/Packages"] = packages
    base = next(base for base in config.bases if base.suite == suite)
    base = dataclasses.replace(base, packages=("tini",))
    with watcher.serve() as url:
        mirrors = (f"deb [trusted=yes] {url}/debian {suite} main",)
        resolver = Resolver(root=root, network=Network(), run=Runner(), mirrors=mirrors)
        lock = resolver.resolve(BaseRequest(name="base-x", request=("tini",), base=base))
        assert resolver.roots() == (f"{url}/debian",)  # whoever downloads needs it
    assert lock.versions() == dict.fromkeys(names, "1")


def test_uv(watcher: Watcher) -> None:
    request = WheelRequest(name="x", request=("x",), python="3.11")
    with watcher.serve() as url, pytest.raises(LockError):
        resolve_wheels(request, network=Network(index=f"{url}/simple"), run=Runner())


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://me:a%2Fb@host:1/x", ("https://host:1/x", "me", "a/b")),
        ("HTTP://me:a@b@host", ("http://host", "me", "a@b")),
        ("https://token@host/x", ("https://host/x", "token", "")),
        ("https://host/x@y", ("https://host/x@y", "", "")),
        ("ssh://git@host/x", ("ssh://git@host/x", "", "")),
        ("/a/folder@x", ("/a/folder@x", "", "")),
    ],
)
def test_the_parts_of_a_url(url: str, parts: tuple[str, str, str]) -> None:
    assert split_user(url) == parts


@pytest.mark.parametrize("url", ["http://me:a@[::1/x", "https://me:a@host:b/x"])
def test_no_url_has_no_parts(url: str) -> None:
    for take in (split_user, lambda url: without_users([f"deb {url} s main"])):
        with pytest.raises(ConfigError, match=r"^a mirror is not a URL; correct it"):
            take(url)


def test_without_users_gives_apt_the_credentials() -> None:
    lines = (
        "deb [a=b] http://me:x@h/d s main",
        "https://token@h:1/d",
        "http://h/d",
        "deb file:/x s",
    )
    assert without_users(lines) == (
        ("deb [a=b] http://h/d s main", "https://h:1/d", "http://h/d", "deb file:/x s"),
        "machine http://h/d login me password x\nmachine https://h:1/d login token\n",
    )
    for odd in (
        "http://me:a%20b@h",
        "http://me:a%0Amachine@h",
        "http://:a@h",
        "http://me:%c3%a4@h",
    ):
        with pytest.raises(ConfigError, match="a mirror has a password that apt does not support"):
            without_users([odd])


def test_a_mirrors_password_is_taken_from_the_environment_and_out_of_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They stand in the list of processes for as long as the command runs."""
    kinds = ("https", "mirror+https", "tor+HTTP", "ftp")
    for mirror in (
        f"deb https://me:{WORD}@h/d s main",
        *(f"{kind}://me:{WORD}@host/debian" for kind in kinds),
    ):
        monkeypatch.setenv("TORCH_IMAGES_MIRROR", f"{mirror}\n\n  {mirror}\n")
        assert verb.mirrors() == (mirror, mirror)
        assert WORD not in without_users([mirror])[0][0]


def test_reproduce_refuses_a_repository_with_a_password(root: Path) -> None:
    done = invoke(root, "reproduce", "x", "--repository", f"https://me:{WORD}@git.example/x")
    assert done.returncode == 2
    assert "--repository has a user or a password" in done.stderr
    assert WORD not in done.stderr


def test_apt_auth_file_is_private(tmp_path: Path) -> None:
    env = {apt._AUTH: f"machine x login me password {WORD}\n"}
    Runner().run(["sh", "-c", apt._TELL, "x", str(tmp_path)], env=env)
    [path] = (tmp_path / "etc/apt/auth.conf.d").iterdir()
    assert path.read_text() == env[apt._AUTH]
    assert path.stat().st_mode & 0o777 == 0o600
