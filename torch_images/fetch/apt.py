"""The packages of a base that apt would install today; scripts/print-packages asks it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch_images.config.lock_requests import BaseRequest, CompatRequest
from torch_images.errors import (
    BuildError,
    CommandError,
    ConfigError,
    DiskError,
    LockError,
    NetworkError,
    TorchImagesError,
)
from torch_images.fetch.download import read
from torch_images.fetch.tools import today
from torch_images.host.diagnose import Diagnosis, diagnose
from torch_images.host.network import URL, Network, split_user
from torch_images.host.runner import Runner
from torch_images.host.scratch import left_behind, scratch
from torch_images.host.workspace import scratch_room
from torch_images.locks.debs import DebLock, LockedDeb, parse_packages
from torch_images.platforms import Platform

# What mmdebstrap takes for a suite of Debian when no mirror is named.
ARCHIVES = ("http://deb.debian.org/debian", "http://security.debian.org/debian-security")
# apt reads users and passwords of mirrors from its own file, which is written from the environment.
_AUTH = "TORCH_IMAGES_APT_AUTH"
_TELL = (
    'folder="$1/etc/apt/auth.conf.d"; mkdir -p "$folder" && '
    f'(umask 077 && printf %s "${_AUTH}" >"$folder/torch-images.conf")'
)
# Packages that mmdebstrap's variant "minbase" installs besides the requested ones.
_MINIMUM = ("?essential", "?priority(required)", "apt")

# Messages of apt or mmdebstrap.
_RESTRICTION = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_RESTRICTED = Diagnosis(
    r"unable to pick chroot mode|unshare|[ug]id_map|Operation not permitted|Permission denied",
    BuildError,
    "{what}: AppArmor forbids user namespaces, as on Ubuntu 24.04, so only root can make it",
    "run `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or this as root",
)
_PROBLEMS = (
    Diagnosis(
        r"No space left on device",
        DiskError,
        "the disk filled up while making {what}",
        "free some space",
    ),
    Diagnosis(
        r"NO_PUBKEY|not signed|signatures? (?:were|was|couldn't|could not)",
        LockError,
        "{what}: the archive is not signed by the key that is pinned for it",
        "correct the mirror, or {key}",
    ),
    Diagnosis(
        r"Release file for \S+ is (?:expired|not valid yet)",
        NetworkError,
        "{what}: the mirror's index of {suite} is too old or from the future",
        "correct this machine's clock, or name another mirror in TORCH_IMAGES_MIRROR",
    ),
    Diagnosis(
        r"(?:Unable|Failed) to fetch|Could not (?:connect|resolve)|not have a Release file",
        NetworkError,
        "{what}: the mirror could not be reached or lacks {suite}",
        "check network and proxy, or name a mirror in TORCH_IMAGES_MIRROR",
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
    `run`: starts mmdebstrap.
    `mirrors`: URLs or lines of a sources.list that replace the default ones; () for none.
    """

    root: Path
    network: Network
    run: Runner
    mirrors: tuple[str, ...] = ()

    def resolve(self, item: BaseRequest) -> DebLock:
        """The lock of a base's packages, as its mirror has them now.

        A foreign platform needs no emulator, because nothing is unpacked. Raises NetworkError,
        BuildError, DiskError or LockError.
        """
        text = self._mmdebstrap(
            f"base {item.base.name}",
            (*_MINIMUM, *item.base.packages),
            item.base.suite,
            self.mirrors,
            platform=item.platform,
        )
        return _lock(item, item.base.system, parse_packages(text))

    def resolve_compat(self, item: CompatRequest) -> DebLock:
        """The lock of NVIDIA's compat package, as its repository has it now.

        Raises NetworkError, or LockError if the repository is not signed by the pinned key.
        """
        compat, [package] = item.compat, item.request
        root = self.network.compat_mirror or compat.repository(item.platform)
        with tempfile.TemporaryDirectory() as keys:
            Path(keys).chmod(0o755)
            # Any source of the key will do: apt checks that exactly this key signed the index.
            key = read(f"{root}/{compat.key[-8:].lower()}.pub", self.network)
            Path(keys, "nvidia.asc").write_bytes(key)
            options = [f"--keyring={keys}"]
            if self.network.ca_bundle:
                options.append(f'--aptopt=Acquire::https::CAInfo "{self.network.ca_bundle}"')
            text = self._mmdebstrap(
                package,
                (package,),
                "compat",
                (f"deb [signed-by={compat.key}] {root} /",),
                *options,
                platform=item.platform,
            )
        debs = [replace(d, path=d.path.removeprefix("./")) for d in parse_packages(text)]
        system = "/".join(compat.repository(item.platform).split("/")[-2:])
        return _lock(item, system, debs)

    def roots(self) -> tuple[str, ...]:
        """The root URLs of the archives that have the packages of bases, e.g. ".../debian"."""
        return tuple(dict.fromkeys(map(_address, self.mirrors))) or ARCHIVES

    def _mmdebstrap(
        self,
        what: str,
        packages: Sequence[str],
        suite: str,
        archives: Sequence[str],
        *options: str,
        platform: Platform,
    ) -> str:
        """What scripts/print-packages prints: what apt would install for some packages of a suite.

        `what` is the subject of errors, e.g. "base bookworm". `archives` replace the default
        mirrors.
        """
        script = (self.root / "scripts" / "print-packages").read_text(encoding="utf-8")
        hook = (
            f'export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"\nset -- {shlex.join(packages)}\n{script}'
        )
        command = ["mmdebstrap", "--variant=custom", "--format=null", *options]
        command.append(f'--customize-hook=exec >"$1"/printed\n{hook}')
        env: dict[str, str | None] = {k.lower(): v for k, v in self.network.proxies}
        archives, env[_AUTH] = without_users(archives)
        if env[_AUTH]:
            command.append(f"--setup-hook={_TELL}")
        with tree_room(self.run) as folder:
            printed = folder / "printed"
            # mmdebstrap would show the output of hooks as its own messages.
            command.append(f"--customize-hook=download /printed {shlex.quote(str(printed))}")
            # Nothing is unpacked, so no emulator is needed.
            command += ["--skip=check/qemu", f"--architectures={platform.architecture}"]
            command += [suite, "/dev/null", *archives]
            try:
                env |= {"LC_ALL": "C.UTF-8", "TMPDIR": str(folder)}
                self.run.run(confined(command, self.run), env=env)
            except CommandError as error:
                raise explain(what, suite, error) from None
            return printed.read_text(encoding="utf-8")


def _lock(item: BaseRequest | CompatRequest, system: str, debs: Iterable[LockedDeb]) -> DebLock:
    return DebLock(
        name=item.name,
        date=today(),
        system=system,
        request=item.request,
        debs=tuple(debs),
        platform=item.platform,
    )


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

    `what` is the product, e.g. "base bookworm"; `suite` the suite that it asked for.
    """
    restricted = os.geteuid() and _RESTRICTION.exists() and _RESTRICTION.read_text().strip() == "1"
    table = (_RESTRICTED, *_PROBLEMS) if restricted else _PROBLEMS
    key = "the key in images.yaml" if suite == "compat" else "install debian-archive-keyring"
    if problem := diagnose(table, error.output, what=what, suite=suite, key=key):
        return problem
    lines = [line for line in error.output.splitlines() if line.startswith("E: ")] or [str(error)]
    return BuildError(f"{what} could not be made: {lines[0]}", f"command: {error.command[:200]}")


def _address(mirror: str) -> str:
    """The URL of a mirror, which may be a sources.list line."""
    url = re.search(r"[a-z]+://\S+", mirror)
    return (url[0] if url else mirror).rstrip("/")
