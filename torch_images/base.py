"""The bootstrapped base: Debian packages -> a cached OCI layout that builds take as context `base`.

Made on the host by mmdebstrap, so no image registry is needed. Rebuilt only when its recipe
changes; the folder appears under its final name whole or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from torch_images import oci
from torch_images.config import Base
from torch_images.errors import BuildError, CommandError, DiskError, NetworkError
from torch_images.network import Network
from torch_images.runner import Runner

# Raise when the steps below change what they produce, so that cached layouts are made anew.
_RECIPE = 1

# What a container never reads: documentation, translations, menu entries.
_EXCLUDED = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*")
_INCLUDED = ("/usr/share/doc/*/copyright",)  # licences must travel with the binaries

# Left by the bootstrap and either state of this host or different in every run.
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
class BaseLayout:
    """A base that builds can use; `digest` is that of its manifest."""

    folder: Path
    digest: str


def bootstrap(
    base: Base,
    *,
    cache: Path,
    mirrors: tuple[str, ...] = (),
    network: Network,
    run: Runner,
    fresh: bool = False,
) -> BaseLayout:
    """The layout of a base, from the cache unless `fresh`.

    `mirrors` are URLs or sources.list lines that replace mmdebstrap's default Debian mirror.
    Raises NetworkError, DiskError or BuildError.
    """
    recipe = {
        "recipe": _RECIPE,
        "suite": base.suite,
        "packages": sorted(base.packages),
        "mirrors": mirrors,
    }
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / f"{base.name}-{key}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if fresh or not folder.exists():
            _bootstrap(base, folder, mirrors, network, run)
    return BaseLayout(folder=folder, digest=oci.layout_digest(folder))


def command(base: Base, target: Path, mirrors: tuple[str, ...]) -> list[str]:
    """The mmdebstrap command that writes `target`, a tar."""
    words = ["mmdebstrap", "--variant=minbase", "--format=tar", "--architectures=amd64"]
    words += [f"--include={','.join(sorted(base.packages))}"]
    words += [f"--dpkgopt=path-exclude={pattern}" for pattern in _EXCLUDED]
    words += [f"--dpkgopt=path-include={pattern}" for pattern in _INCLUDED]
    # The options above would otherwise stay in the image and hide files of later packages.
    words += ['--customize-hook=rm -f "$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap']
    return [*words, base.suite, str(target), *mirrors]


def kept(path: str) -> bool:
    """Whether a path of the bootstrapped tree belongs in the image."""
    return not _DROPPED.fullmatch(path)


def _bootstrap(
    base: Base, folder: Path, mirrors: tuple[str, ...], network: Network, run: Runner
) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as scratch:
        tar, layer, layout = (Path(scratch, name) for name in ("tree.tar", "layer.tar", "layout"))
        env: dict[str, str | None] = {k.lower(): v for k, v in network.proxies}
        env |= {"SOURCE_DATE_EPOCH": str(oci.EPOCH), "LC_ALL": "C.UTF-8", "TMPDIR": scratch}
        old_mask = os.umask(0o022)
        try:
            run.run(command(base, tar, mirrors), env=env)
        except CommandError as error:
            raise _explain(base, error) from None
        finally:
            os.umask(old_mask)
        with layer.open("wb") as stream:
            oci.normalise(tar, stream, keep=kept)
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        history = f"mmdebstrap --variant=minbase {base.suite}"
        oci.write_layout(layout, layer, history=history, env=(path,))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(layout, folder)


def _explain(base: Base, error: CommandError) -> Exception:
    """The user's view of a failed bootstrap."""
    text = error.output
    if "No space left on device" in text:
        return DiskError(f"the disk filled up while base {base.name} was made", "free some space")
    if re.search(
        r"(?:Unable|Failed) to fetch|Could not (?:connect|resolve)|not have a Release file",
        text,
    ):
        return NetworkError(
            f"base {base.name}: the Debian mirror could not be reached or lacks {base.suite}",
            "check network and proxy, or name a mirror with --mirror or TORCH_IMAGES_MIRROR",
        )
    missing = re.search(r"Unable to locate package (\S+)", text)
    if missing:
        return BuildError(
            f"base {base.name}: the mirror has no package {missing[1]}",
            "correct its packages in images.yaml",
        )
    lines = [line for line in text.splitlines() if line.startswith("E: ")] or [str(error)]
    return BuildError(
        f"base {base.name} could not be made: {lines[0]}", f"command: {error.command}"
    )
