"""Tables of README.md and docs, generated from images.yaml and locks/.

    python scripts/docs/docs_tables.py [--check]

With --check it changes nothing, and fails if a table is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.version import Version

from torch_images.cli import verb
from torch_images.config.extras import Variant
from torch_images.config.image import ImageSpec
from torch_images.config.matrix import matrix
from torch_images.config.tags import floating
from torch_images.config.types import Config
from torch_images.locks.image_lock import compat_versions, image_lock
from torch_images.markdown import table
from torch_images.verify import ledger

# The pages with generated tables.
PAGES = ("README.md", "docs/build.md")
_PART = re.compile(r"(<!-- ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables(config: Config, root: Path, locks: Path) -> dict[str, str]:
    """Every generated table, by the name of its marker in the text."""
    return {
        "drivers": _drivers(config, locks),
        "images": _images(config, root, locks),
        "variants": _variants(config),
        "extras": _extras(config),
        "bases": _bases(config),
        "sources": _sources(config),
    }


def fill(text: str, parts: Mapping[str, str]) -> str:
    """A text with its parts between "<!-- name -->" and "<!-- end -->" replaced by `parts`."""
    return _PART.sub(lambda match: f"{match[1]}{parts[match[2]]}{match[3]}", text)


def _images(config: Config, root: Path, locks: Path) -> str:
    """A row for each release of torch and CUDA version: versions, architectures, and tags.

    The tags are those without the version of torch, or else the shortest one of each image. The
    last column counts the tested images.
    """
    specs = matrix(config)
    state = ledger.reader(config, ledger.read(root), root, locks)
    rows = []
    newest = sorted({(s.cuda, s.torch) for s in specs}, key=lambda x: Version(x[1]), reverse=True)
    for cuda, torch in sorted(newest, key=lambda x: x[0].version):
        images = [s for s in specs if (s.cuda, s.torch) == (cuda, torch)]
        first = images[0]
        tags = dict.fromkeys(tag for s in images for tag in _short(floating(config, s), torch))
        cells = (
            f"`{cuda.repository}`",
            torch,
            image_lock(config, first, locks).triton,
            first.base.python,
            cuda.driver,
            *_architectures(config, images),
            ", ".join(f"`{tag}`" for tag in tags),
            f"{sum(state(s).tested for s in images)} of {len(images)}",
        )
        rows.append(cells)
    header = ["Image", "PyTorch", "Triton", "Python", "Driver"]
    header += [f"Architectures, {platform}" for platform in config.platforms]
    return _text([*header, "Tags", "Tested images"], rows)


def _short(tags: Sequence[str], torch: str) -> Sequence[str]:
    """The tags that do not begin with a version of torch, else the last one, which is shortest."""
    minor = ".".join(torch.split(".")[:2])
    return [tag for tag in tags if not tag.startswith(minor)] or tags[-1:]


def _architectures(config: Config, images: Sequence[ImageSpec]) -> Iterator[str]:
    """Compute capabilities of the whole image of a release on each platform; "none" without one."""
    for platform in config.platforms:
        whole = (s for s in images if s.whole and s.platform == platform)
        yield next((" ".join(s.arches) for s in whole), "none")


def _drivers(config: Config, locks: Path) -> str:
    """A row for each CUDA version: releases of torch, drivers that run its images, variants."""
    compat, rows = compat_versions(config, locks, config.platforms[0]), []
    for cuda in config.cudas:
        images = [spec for spec in matrix(config) if spec.cuda == cuda]
        torch = sorted({spec.torch for spec in images}, key=Version)
        minor = rf"; {cuda.older_branch} \*" if cuda.older_branch else ""
        older = ", ".join(map(str, cuda.compat)) if compat[cuda.version] else "none yet"
        cells = (
            f"`{cuda.repository}`",
            " to ".join(dict.fromkeys((torch[0], torch[-1]))),
            images[0].base.python,
            f"{cuda.driver}{minor}",
            older,
            ", ".join(dict.fromkeys(f"`{spec.variant.name}`" for spec in images)),
        )
        rows.append(cells)
    header = ["Image", "PyTorch", "Python", "Driver, or newer", "Older drivers with `--compat`"]
    return _text([*header, "Variants"], rows)


def _variants(config: Config) -> str:
    """A row for each variant of the catalogue: what it holds, and for which CUDA versions."""
    specs = matrix(config)
    rows = [
        (f"`{variant.name}`", variant.description, ", ".join(_served(variant, versions)))
        for variant in config.variants
        if (
            versions := dict.fromkeys(
                s.cuda.version for s in specs if s.variant.name == variant.name
            )
        )
    ]
    return _text(["Variant", "Contents", "In the catalogue for CUDA"], rows)


def _served(variant: Variant, versions: Iterable[str]) -> Iterator[str]:
    for version in versions:
        yield f"{version} (without nvcc)" if version in variant.no_toolkit else version


def _extras(config: Config) -> str:
    rows = [
        (f"`{extra.name}`", extra.description, ", ".join(users))
        for extra in config.extras
        if (users := [f"`{v.name}`" for v in config.variants if extra in v.extras])
    ]
    return _text(["Extra", "Contents", "In variants"], rows)


def _bases(config: Config) -> str:
    """A row for each base of the catalogue, with the CUDA versions that have it by default."""
    used = {spec.base for spec in matrix(config)}
    defaults = {b: ", ".join(c.version for c in config.cudas if c.base == b.name) for b in used}
    rows = [
        (f"`{base.name}`", base.description, base.python, defaults[base])
        for base in config.bases
        if base in used
    ]
    return _text(["Base", "Contents", "Python", "Default for CUDA"], rows)


def _sources(config: Config) -> str:
    rows = [(f"`{source.name}`", source.description) for source in config.sources]
    return _text(["Source", "torch and Triton"], rows)


def _text(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return "\n".join(table(header, rows)) + "\n"


def main() -> None:
    """Fill the tables of all pages, or check them."""
    parts = tables(verb.config(), verb.ROOT, verb.workspace().locks)
    for name in PAGES:
        page = verb.ROOT / name
        text = page.read_text()
        filled = fill(text, parts)
        if filled == text:
            print(f"{name} is up to date")
        elif "--check" in sys.argv:
            sys.exit(f"{name} is out of step with images.yaml; run `./inv docs`")
        else:
            page.write_text(filled)
            print(f"{name} was written")


if __name__ == "__main__":
    main()
