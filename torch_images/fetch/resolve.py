"""Resolve wheels with uv, also for a release of torch from a second index.

uv must take only the listed packages from the second index. So it gets a folder with copies of
their pages as the first index. uv takes a package from the first index that has a page of it
(https://docs.astral.sh/uv/concepts/indexes), so it does not ask the main index for these packages,
nor the second index for others. An index that is `explicit` does not do: `uv pip compile` 0.13
applies it to direct requirements only, so torch's triton would come from the main index.
"""

from __future__ import annotations

import logging
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from packaging.markers import default_environment
from packaging.pylock import (
    Package,
    PackageWheel,
    Pylock,
    PylockSelectError,
    PylockValidationError,
)

from torch_images.config.indexes import Index, origin
from torch_images.config.lock_requests import WheelRequest
from torch_images.errors import CommandError, LockError, NetworkError, shown
from torch_images.fetch.download import size
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.tools import today, uv_command
from torch_images.host.diagnose import Diagnosis, refusal
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.host.workers import workers
from torch_images.locks.wheels import LockedWheel, WheelLock, tags, uv_platform
from torch_images.platforms import Platform

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage

_log = logging.getLogger(__name__)

# Messages of uv.
_PROBLEMS = (
    Diagnosis(
        r"error\s+sending\s+request|Could\s+not\s+connect|Failed\s+to\s+fetch|dns\s+error",
        NetworkError,
        "the package index could not be reached",
        "check network and proxy, or name a mirror in UV_DEFAULT_INDEX",
    ),
    Diagnosis("", LockError, "no set of wheels meets the requirements: {message}", "{hint}"),
)

_WARNING = re.compile("warning: ")
_YANKED = re.compile(r"^warning: (`[^`]+` is yanked.*)", re.MULTILINE)
_NONE: Mapping[str, str] = MappingProxyType({})
_PYLOCK = 'lock-version = "1.0"\ncreated-by = "torch-images"\n'
_PACKAGE = '[[packages]]\nname = "{}"\nversion = "{}"\n'


def resolve(
    item: WheelRequest,
    *,
    network: Network,
    run: Runner,
    constraints: Sequence[str] = (),
    prefer: Mapping[str, str] = _NONE,
) -> WheelLock:
    """Resolve a request and its dependencies to one wheel each, by uv's choice.

    `constraints`, e.g. "numpy==2.3.5", fix a package's version if it is needed. `prefer` has the
    version by name that is taken where it fits. Raises NetworkError if an index cannot be reached,
    and LockError if there is no solution, or an index has no SHA-256 for a wheel.
    """
    if item.beside:
        wider = replace(item, request=(*item.request, *item.beside), beside=(), alone=False)
        versions = resolve(wider, network=network, run=run, constraints=constraints).versions()
        constraints = (*constraints, *(f"{n}=={version}" for n, version in versions.items()))
    env, hint = network.for_uv(), ""
    with tempfile.TemporaryDirectory() as folder:
        target, limits = Path(folder, "pylock.toml"), Path(folder, "constraints.txt")
        limits.write_text("\n".join(constraints))
        overrides = Path(folder, "overrides.txt")
        overrides.write_text("\n".join(item.overrides))
        if prefer:  # uv keeps the versions in the file that it replaces, where they fit
            target.write_text(_PYLOCK + "".join(_PACKAGE.format(*one) for one in prefer.items()))
        if item.index:
            with PackageIndex(network) as client:
                env["UV_INDEX"] = write_pages(item.index, client, Path(folder, "pages"))
            hint = f"list packages that only {item.index.url} has under `packages` of this index"
        command = uv_command("pip", "compile", "--no-header", "--no-annotate")
        command += ["--format", "pylock.toml", "--python-platform", uv_platform(item.platform)]
        # Name this Python, though nothing is built with it: else uv downloads one from GitHub.
        command += ["--python", sys.executable, "--python-version", item.python]
        command += ["--only-binary", ":all:", "-o", str(target), "-"]
        command += [f"--constraints={limits}", f"--overrides={overrides}"]
        command += ["--no-deps"] if item.alone else []
        try:
            done = run.run(command, env=env, stdin="\n".join(item.request))
        except CommandError as error:
            lines = [line for line in error.output.splitlines() if not _WARNING.match(line)]
            text = "\n".join(lines).replace("\u2570\u2500\u25b6", "")
            raise refusal(_PROBLEMS, text, hint=hint) from None
        for words in _YANKED.findall(done.errors):
            _log.warning("%s: %s", item.name, shown(words))
        document = tomllib.loads(target.read_text(encoding="utf-8"))
    chosen = select(document, item.python, item.platform)
    with workers(8) as pool:  # indexes need not state sizes (PEP 700)
        sizes = pool.map(lambda one: one[1].size or size(str(one[1].url), network), chosen)
    wheels = [
        LockedWheel(
            name=package.name,
            version=str(package.version or ""),
            filename=wheel.filename,
            size=count or 0,
            sha256=_sha256(wheel),
            index=origin(package.name, item.index),
        )
        for (package, wheel), count in zip(chosen, sizes, strict=True)
    ]
    return WheelLock(
        name=item.name,
        date=today(),
        python=item.python,
        request=tuple(sorted(item.request)),
        wheels=tuple(sorted(wheels)),
        platform=item.platform,
    )


def write_pages(index: Index, client: PackageIndex, folder: Path) -> str:
    """Write an index (PEP 503) with the pages of the packages listed for another index.

    Returns its URL. Raises NetworkError.
    """
    with workers(8) as pool:
        pages = pool.map(lambda name: client.files(name, index.url), index.packages)
    for name, files in zip(index.packages, pages, strict=True):
        lines = [_link(file) for file in files if file.url.startswith(("http://", "https://"))]
        # a page without links, too: else uv asks the main index
        (folder / name).mkdir(parents=True)
        text = f"<!DOCTYPE html><html><body>{'<br>'.join(lines)}</body></html>"
        data = text.encode(errors="xmlcharrefreplace")  # JSON can have lone surrogates
        (folder / name / "index.html").write_bytes(data)
    return folder.as_uri()


def _link(file: DistributionPackage) -> str:
    sha256 = file.digests.get("sha256", "")
    facts = {"href": file.url + (f"#sha256={sha256}" if sha256 else "")}
    if file.requires_python:
        facts["data-requires-python"] = file.requires_python
    if file.is_yanked:
        facts["data-yanked"] = file.yanked_reason or ""
    if file.has_metadata:
        digest = (file.metadata_digests or {}).get("sha256", "")
        facts["data-core-metadata"] = f"sha256={digest}" if digest else "true"
    words = " ".join(f'{key}="{escape(value)}"' for key, value in facts.items())
    return f"<a {words}>{escape(file.filename)}</a>"


def markers(python: str, platform: Platform, full: str = "") -> dict[str, str]:
    """The values of markers in images; `full` is their whole version of Python, if known."""
    return {
        **{name: str(value) for name, value in default_environment().items()},
        "os_name": "posix",
        "platform_system": "Linux",
        "sys_platform": "linux",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_machine": platform.machine,
        "python_version": python,
        "python_full_version": full or f"{python}.99",
    }


def select(
    document: dict[str, Any],
    python: str,
    platform: Platform,
    *,
    extras: Sequence[str] = (),
    groups: Sequence[str] | None = None,
) -> list[tuple[Package, PackageWheel]]:
    """The wheel to install of each package of a pylock.toml (PEP 751).

    Raises LockError if no wheel fits.
    """
    environment: Any = markers(python, platform)
    try:
        selected = Pylock.from_dict(document).select(
            environment=environment,
            tags=tags(python, platform),
            extras=extras,
            dependency_groups=groups,
        )
        chosen = list(selected)
        problem = ", ".join(p.name for p, file in chosen if not isinstance(file, PackageWheel))
    except (PylockValidationError, PylockSelectError) as error:
        chosen, problem = [], str(error)
    if problem:
        raise LockError(
            f"no wheel for Python {python} on {platform}: {shown(problem)}",
            "choose another version in images.yaml, or exclude it there",
        )
    return [(package, file) for package, file in chosen if isinstance(file, PackageWheel)]


def _sha256(wheel: PackageWheel) -> str:
    if "sha256" not in wheel.hashes:
        raise LockError(
            f"the package index gives no SHA-256 for {wheel.filename}",
            "name an index that does in UV_DEFAULT_INDEX",
        )
    return wheel.hashes["sha256"]
