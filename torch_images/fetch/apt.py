"""The packages of a base that apt would install today, resolved at a mirror or in its image.

apt itself decides in both cases, through scripts/print-packages.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import requests

from torch_images.config.types import Base, Compat
from torch_images.errors import (
    BuildError,
    CommandError,
    ConfigError,
    DiskError,
    EngineError,
    LockError,
    NetworkError,
    TorchImagesError,
)
from torch_images.host.diagnose import Diagnosis, diagnose
from torch_images.host.engine import Engine
from torch_images.host.network import URL, Network, cause, split_user
from torch_images.host.runner import Runner
from torch_images.host.scratch import left_behind, scratch
from torch_images.host.web import Session
from torch_images.host.workspace import scratch_room
from torch_images.locks.debs import DebLock, parse_packages
from torch_images.platforms import AMD64, Platform

_WAYS = "check network and proxy, or name a mirror with TORCH_IMAGES_COMPAT_MIRROR"
# apt reads users and passwords of mirrors from its own file, which is written from the environment.
_AUTH = "TORCH_IMAGES_APT_AUTH"
_TELL = (
    'folder="$root/etc/apt/auth.conf.d"; mkdir -p "$folder" && '
    f'(umask 077 && printf %s "${_AUTH}" >"$folder/torch-images.conf")'
)
# Packages that mmdebstrap's variant "minbase" installs besides the requested ones.
_MINIMUM = ("?essential", "?priority(required)", "apt")

# Messages of apt or mmdebstrap.
_PROBLEMS = (
    Diagnosis(
        r"No space left on device",
        *(DiskError, "the disk filled up while making {what}", "free some space"),
    ),
    Diagnosis(
        r"NO_PUBKEY|not signed|signatures? (?:were|was|couldn't|could not)",
        LockError,
        "{what}: the archive is not signed by the key that is pinned for it",
        "correct the mirror, or the key in images.yaml",
    ),
    Diagnosis(
        r"Release file for \S+ is (?:expired|not valid yet)",
        NetworkError,
        "{what}: the mirror's index of {suite} is too old or from the future",
        "correct this machine's clock, or name another mirror with --mirror or TORCH_IMAGES_MIRROR",
    ),
    Diagnosis(
        r"(?:Unable|Failed) to fetch|Could not (?:connect|resolve)|not have a Release file",
        NetworkError,
        "{what}: the mirror could not be reached or lacks {suite}",
        "check network and proxy, or name a mirror with --mirror or TORCH_IMAGES_MIRROR",
    ),
    Diagnosis(
        r"unable to pick chroot mode",
        BuildError,
        "{what}: mmdebstrap does not work for users other than root",
        "install uidmap, which has newuidmap, and check that /etc/subuid lists this user",
    ),
    Diagnosis(
        r"Unable to locate package (?P<package>\S+)",
        LockError,
        "{what}: the mirror has no package {package}",
        "correct its packages in images.yaml",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Resolver:
    """Resolves packages with apt.

    `root`: the project's folder, which has scripts/.
    `network`: proxies, certificates and mirrors.
    `run`: starts mmdebstrap, for a base that is bootstrapped.
    `engine`: runs apt in an image; None without a Docker Engine.
    `mirrors`: URLs or lines of a sources.list that replace the default ones; () for none.
    """

    root: Path
    network: Network
    run: Runner
    engine: Engine | None = None
    mirrors: tuple[str, ...] = ()

    def resolve(
        self, name: str, base: Base, image: str, date: dt.date, *, platform: Platform = AMD64
    ) -> DebLock:
        """The lock of a base's packages, as its mirror has them now.

        `name` and `date` are the lock's. `image` is the image to add the packages to, with tag and
        digest; "" for a bootstrapped base. A bootstrapped base of a foreign `platform` needs no
        emulator, because nothing is unpacked. Raises NetworkError, BuildError, DiskError,
        LockError, or EngineError if an image is needed and there is no engine.
        """
        script = (self.root / "scripts" / "print-packages").read_text(encoding="utf-8")
        if image:
            text = self._in_image(base, image, script)
        else:
            packages = shlex.join((*_MINIMUM, *base.packages))
            hook = f'export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"\nset -- {packages}\n{script}'
            what = f"base {base.name}"
            text = self._mmdebstrap(what, hook, base.suite, self.mirrors, platform=platform)
        return DebLock(
            name=name,
            date=date,
            system=base.system,
            request=tuple(sorted(base.packages)),
            debs=parse_packages(text),
            image=image,
            platform=platform,
        )

    def resolve_compat(
        self, name: str, package: str, compat: Compat, date: dt.date, *, platform: Platform = AMD64
    ) -> DebLock:
        """The lock of NVIDIA's compat package, as its repository has it now.

        `name` and `date` are those of the lock; `package` is such as "cuda-compat-13-0". Raises
        NetworkError, or LockError if the repository is not signed by the pinned key.
        """
        [root] = self.compat_roots(compat, platform)
        script = (self.root / "scripts" / "print-packages").read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as keys:
            Path(keys).chmod(0o755)
            # Any source of the key will do: apt checks that exactly this key signed the index.
            key = self._download(f"{root}/{compat.key[-8:].lower()}.pub")
            Path(keys, "nvidia.asc").write_bytes(key)
            options = [f"--keyring={keys}"]
            if self.network.ca_bundle:
                options.append(f'--aptopt=Acquire::https::CAInfo "{self.network.ca_bundle}"')
            text = self._mmdebstrap(
                package,
                f'export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"\nset -- {package}\n{script}',
                "compat",
                (f"deb [signed-by={compat.key}] {root} /",),
                *options,
                platform=platform,
            )
        debs = [replace(d, path=d.path.removeprefix("./")) for d in parse_packages(text)]
        return DebLock(
            name=name,
            date=date,
            system="/".join(compat.repository(platform).split("/")[-2:]),
            request=(package,),
            debs=tuple(debs),
            platform=platform,
        )

    def compat_roots(self, compat: Compat, platform: Platform = AMD64) -> tuple[str, ...]:
        """The URL of the repository with NVIDIA's compat packages, or of its mirror."""
        return (self.network.compat_mirror or compat.repository(platform),)

    def roots(self, base: Base) -> tuple[str, ...]:
        """The root URLs of the archives that have a base's packages, such as ".../debian"."""
        if not base.suite:
            urls = [_address(mirror) for mirror in self.mirrors]
            return tuple(dict.fromkeys(urls or [base.mirror]))
        listing = 'cat "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* 2>/dev/null || true'
        what = f"base {base.name}"
        text = self._mmdebstrap(what, listing, base.suite, self.mirrors, "--skip=update")
        uris = re.findall(r"^(?:deb|URIs:)\s+(?:\[[^]]*\]\s+)?(\S+)", text, re.MULTILINE)
        users = {split_user(url)[0]: url for url in map(_address, self.mirrors)}
        return tuple(dict.fromkeys(users.get(uri.rstrip("/"), uri.rstrip("/")) for uri in uris))

    def digest(self, image: str, *, missing_ok: bool = False) -> str:
        """The digest that a registry has for an image; "" if it has none and `missing_ok`.

        Raises UsageError, NetworkError or EngineError.
        """
        if self.engine is None:
            raise EngineError(f"looking up image {image} needs a Docker Engine")
        return self.engine.registry_digest(image, missing_ok=missing_ok)

    def _mmdebstrap(
        self,
        what: str,
        script: str,
        suite: str,
        archives: Sequence[str],
        *options: str,
        platform: Platform = AMD64,
    ) -> str:
        """The output of a script for an empty root file system with the sources of a suite.

        "$1" of the script is the folder of that file system. `what` is the subject of errors, such
        as "base bookworm". `archives` replace the default mirrors.
        """
        command = ["mmdebstrap", "--variant=custom", "--format=null", *options]
        command.append(f'--customize-hook=exec >"$1"/printed\n{script}')
        env: dict[str, str | None] = {k.lower(): v for k, v in self.network.proxies}
        archives, env[_AUTH] = without_users(archives)
        if env[_AUTH]:
            command.append(f"--setup-hook=root=$1; {_TELL}")
        with tree_room(self.run) as folder:
            printed = folder / "printed"
            # mmdebstrap would show the output of hooks as its own messages.
            command.append(f"--customize-hook=download /printed {shlex.quote(str(printed))}")
            # Nothing is unpacked, so no emulator is needed.
            command += ["--skip=check/qemu"]
            command += [f"--architectures={platform.architecture}", suite, "/dev/null", *archives]
            try:
                env |= {"LC_ALL": "C.UTF-8", "TMPDIR": str(folder)}
                self.run.run(confined(command, self.run), env=env)
            except CommandError as error:
                raise explain(what, suite, error) from None
            return printed.read_text(encoding="utf-8")

    def _in_image(self, base: Base, image: str, script: str) -> str:
        """The output of print-packages in a container of an image."""
        prepare = "apt-get -qq update >&2"
        mirrors, auth = without_users(self.mirrors)
        if auth:
            prepare = f"root=; {_TELL}; {prepare}"
        if mirrors:
            lines = "\n".join(sources(mirrors, base.system.split()[-1]))
            prepare = (
                f"rm -rf /etc/apt/sources.list.d/*; printf '%s\\n' {shlex.quote(lines)} "
                f">/etc/apt/sources.list; {prepare}"
            )
        words = ["sh", "-c", f"{prepare}\n{script}", "print-packages", *base.packages]
        near = self.network.on_loopback or any("//127.0.0.1" in m for m in self.mirrors)
        if self.engine is None:
            raise EngineError(f"reading the packages of {image} needs a Docker Engine")
        self.engine.pull(image)
        done = self.engine.run(
            image,
            *words,
            entrypoint=[""],
            user="0",
            network_mode="host" if near else "bridge",
            environment={**{n.lower(): url for n, url in self.network.proxies}, _AUTH: auth},
        )
        if done.code:
            failed = CommandError(shlex.join(words[:2]), done.code, done.output)
            raise explain(f"base {base.name}", base.system, failed)
        return done.output

    def _download(self, url: str) -> bytes:
        """The content of a small file. Raises NetworkError."""
        try:
            answer = Session(self.network).get(url)
            answer.raise_for_status()
        except requests.RequestException as error:
            raise NetworkError(f"{url} could not be fetched: {cause(error)}", _WAYS) from None
        return answer.content


def sources(mirrors: Sequence[str], codename: str) -> tuple[str, ...]:
    """Mirrors as lines of a sources.list; a bare URL gets a release's main component."""
    return tuple(m if m.startswith("deb ") else f"deb {m} {codename} main" for m in mirrors)


@contextlib.contextmanager
def tree_room(run: Runner) -> Iterator[Path]:
    """A folder for mmdebstrap's trees. First removes trees that killed processes left."""
    # Outside the home directory, which a rootless bootstrap's namespace cannot enter.
    place = scratch_room()
    if os.geteuid():  # files of these trees belong to users that only mmdebstrap can become
        for tree in (tree for left in left_behind(place) for tree in left.glob("mmdebstrap.*")):
            empty = ["find", str(tree), "-xdev", "-mindepth", "1", "-delete"]
            run.run(["mmdebstrap", "--unshare-helper", *empty], check=False)
    with scratch(place, "torch-images-") as folder:
        folder.chmod(0o755)
        yield folder


def confined(mmdebstrap: Sequence[str], run: Runner) -> list[str]:
    """A command of mmdebstrap that leaves nothing behind, however this process ends.

    As root, mmdebstrap mounts the host's own /dev, /proc and /sys in its tree: this must happen in
    a mount namespace that ends with its last process, or not at all. Without root it creates one
    itself, and cleans up on SIGTERM.
    """
    ends = ["setpriv", "--pdeathsig"]
    if os.geteuid():
        return [*ends, "TERM", *mmdebstrap]
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    if run.run([*apart, "true"], check=False).code:  # root without the right to mount
        return [*ends, "TERM", *mmdebstrap[:1], "--skip=chroot/mount", *mmdebstrap[1:]]
    return [*ends, "KILL", *apart, *mmdebstrap]


def without_users(mirrors: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Mirrors without users and passwords, and these in the format of apt_auth.conf(5).

    Raises ConfigError for a password that this format cannot express.
    """
    auth = []

    def bare(match: re.Match[str]) -> str:
        url, user, word = split_user(match[0])
        if not re.fullmatch(r"[!-~]+ [!-~]+", f"{user} {word or '-'}"):
            raise ConfigError("a mirror has a password that apt does not support", "choose another")
        password = f" password {word}" if word else ""
        auth.append(f"machine {url} login {user}{password}\n")
        return url

    lines = tuple(
        re.sub(rf"{URL}[^\s/@]+@\S+", bare, line, flags=re.IGNORECASE) for line in mirrors
    )
    return lines, "".join(auth)


def explain(what: str, suite: str, error: CommandError) -> TorchImagesError:
    """The error for the user, from the output of a failed apt or mmdebstrap.

    `what` is the product, such as "base bookworm"; `suite` the suite that it asked for.
    """
    if problem := diagnose(_PROBLEMS, error.output, what=what, suite=suite):
        return problem
    lines = [line for line in error.output.splitlines() if line.startswith("E: ")] or [str(error)]
    return BuildError(f"{what} could not be made: {lines[0]}", f"command: {error.command[:200]}")


def _address(mirror: str) -> str:
    """The URL of a mirror, which may be a sources.list line."""
    url = re.search(r"[a-z]+://\S+", mirror)
    return (url[0] if url else mirror).rstrip("/")
