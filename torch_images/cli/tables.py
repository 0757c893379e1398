"""The parts of README.md that follow from images.yaml and the locks. Pure but for locks/."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec
from torch_images.config.matrix import matrix
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.locks.image_lock import compat_versions, image_lock
from torch_images.markdown import table
from torch_images.publish import ledger
from torch_images.publish.tag_rules import floating

_NO_COMPAT = "none: no compat library is locked yet"
_PART = re.compile(r"(<!-- ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables(config: Config, root: Path, locks: Path) -> dict[str, str]:
    """Every generated table by the name that its place in the text has."""
    return {"drivers": _drivers(config, locks), "images": _images(config, root, locks)}


def fill(text: str, parts: Mapping[str, str]) -> str:
    """A text with its generated parts, between "<!-- name -->" and "<!-- end -->", made anew.

    Raises UsageError for a part that nobody generates.
    """

    def part(table: re.Match[str]) -> str:
        if table[2] not in parts:
            raise UsageError(f"no table is called '{table[2]}'", f"known: {', '.join(parts)}")
        return f"{table[1]}{parts[table[2]]}{table[3]}"

    return _PART.sub(part, text)


def _images(config: Config, root: Path, locks: Path) -> str:
    """A row for each release of torch: what its default images hold, and the tags they have.

    The last column says how many of the release's images are proved by the ledger.
    """
    specs = matrix(config)
    states = ledger.states(config, specs, ledger.read(root), root, locks)
    header = ["Image", "CUDA", "PyTorch", "Triton", "Python", "Driver"]
    header += [f"Architectures, {platform}" for platform in config.platforms]
    rows, first = [], config.platforms[0]
    compat = compat_versions(config, locks, first)
    for cuda, torch in ((c, t) for c in config.cudas for t in reversed(c.torch)):
        spec = choose(config, cuda=cuda.version, torch=torch, arch="all", platform=first.name)
        newest = spec.architectures[-1].name
        one = choose(config, cuda=cuda.version, torch=torch, arch=newest, platform=first.name)
        names = ", ".join(
            f"`{tag}`" for tag in (floating(config, spec)[-1], *floating(config, one))
        )
        cells = (
            f"`{cuda.repository}`",
            cuda.version,
            spec.torch,
            image_lock(config, spec, locks).triton,
            spec.base.python,
            cuda.driver,
            *_architectures(config, spec, specs),
            f"{names} ..." if compat[cuda.version] else _NO_COMPAT,
            _proved([states[s] for s in specs if (s.cuda, s.torch) == (cuda, torch)]),
        )
        rows.append(cells)
    return "\n".join(table([*header, "Floating tags", "Proved images"], rows)) + "\n"


def _architectures(config: Config, spec: ImageSpec, specs: Sequence[ImageSpec]) -> Iterator[str]:
    """For each platform, what the image for all architectures has there; "none" for no image."""
    name = spec.id.removesuffix(spec.platform.suffix)
    for platform in config.platforms:
        same = (s for s in specs if s.id == name + platform.suffix)
        yield next((" ".join(a.name for a in s.architectures) for s in same), "none")


def _drivers(config: Config, locks: Path) -> str:
    """A row for each CUDA version: from which driver its images work, and with what help."""
    compat, rows = compat_versions(config, locks, config.platforms[0]), []
    for cuda in config.cudas:
        native = f"{cuda.driver} or newer"
        if cuda.older_branch:
            native += (
                f". From {cuda.older_branch} it also works, unless your code compiles PTX "
                "at run time (Numba, CuPy raw kernels)"
            )
        version = compat[cuda.version]
        older = (
            f"{', '.join(map(str, cuda.compat))}, with compat {version}" if version else _NO_COMPAT
        )
        rows.append((f"`{cuda.repository}`", native, older))
    header = ["Image", "Driver, on any GPU"]
    header += [f"Older branches, on data-centre and professional GPUs ({config.platforms[0]})"]
    return "\n".join(table(header, rows)) + "\n"


def _proved(states: Sequence[ledger.State]) -> str:
    """How many images are proved."""
    return f"{sum(state.proved for state in states)} of {len(states)}"
