"""The verbs that keep the project and this machine in order; see tasks.py."""

from __future__ import annotations

import sys
from pathlib import Path

from invoke.context import Context

from torch_images import cli


@cli.verb(
    help={
        "all": "also what is too slow for every change",
        "fast": "only lint, types and unit tests: no Docker",
    }
)
def test(c: Context, all: bool = False, fast: bool = False) -> None:
    """Lint, check types, and run the tests; all but --fast build and verify real images."""
    tools = Path(sys.executable).parent
    with c.cd(str(cli.ROOT)):
        c.run(f"{tools}/ruff check .", echo=True)
        c.run(f"{tools}/ruff format --check .", echo=True)
        c.run(f"{tools}/mypy", echo=True)
        c.run(f"{tools}/shellcheck inv .ci/run {_shell_scripts()}", echo=True)
        # a test that cannot be collected is found before anything waits for an engine
        c.run(f"{tools}/pytest tests/integration --collect-only --quiet --quiet", echo=True)
        c.run(f"{tools}/pytest tests/unit", echo=True)
        if fast:
            return
        cli.engine(bootstraps=True)
        slow = "" if all else " -m 'not slow'"
        c.run(f"{tools}/pytest tests/integration --durations=30{slow}", echo=True)


@cli.verb(
    help={
        "images": "also the images that were built and tagged",
        "cache": "also the builder's whole build cache, whoever filled it",
    }
)
def clean(c: Context, images: bool = False, cache: bool = False) -> None:
    """Remove build contexts and images that were never verified."""
    from torch_images import publish
    from torch_images.runner import Runner

    place = cli.place()
    removed = publish.clean(place, cli.engine(), Runner(), images=images, cache=cache)
    for line in removed:
        print(line)


@cli.verb(help={"check": "change nothing, fail if a table is out of date"})
def docs(c: Context, check: bool = False) -> None:
    """Write the tables of README.md that follow from images.yaml."""
    from torch_images.errors import UsageError
    from torch_images.tables import fill, tables

    readme = cli.ROOT / "README.md"
    text = readme.read_text()
    found = fill(text, tables(cli.config(), cli.place().locks))
    if check and found != text:
        raise UsageError("README.md is out of step with images.yaml", "run `invoke docs`")
    if found != text:
        readme.write_text(found)
    print("README.md is up to date" if found == text else "README.md was written")


def _shell_scripts() -> str:
    """The scripts below scripts/ that a shell runs."""
    found = (path for path in (cli.ROOT / "scripts").rglob("*") if path.is_file())
    files = sorted(path for path in found if path.suffix != ".pyc")
    return " ".join(
        str(p.relative_to(cli.ROOT)) for p in files if "sh" in p.read_text().split("\n")[0]
    )


@cli.verb(
    help={
        "older": "what was not used for this long goes, such as 12h, 30d, 8w",
        "keep": "of the rest, keep the latest used up to this size of images, and of cache, each",
        "dry-run": "say what would go, change nothing",
    }
)
def prune(c: Context, older: str = "30d", keep: str = "", dry_run: bool = False) -> None:
    """Remove old images of ours, our own cache and the build cache; registries are not touched."""
    from datetime import UTC, datetime

    from torch_images import prune as stage
    from torch_images.runner import Runner

    limits = stage.Limits(age=stage.parse_age(older), size=stage.parse_size(keep))
    engine, run, now = cli.engine(), Runner(), datetime.now(UTC)
    groups = (stage.images(engine), stage.cache(cli.place().cache))
    items = tuple(item for group in groups for item in stage.surplus(group, limits, now))
    for item in items if dry_run else stage.remove(items, engine):
        word = "would remove" if dry_run else "removed"
        print(f"{word} {item.name}, {item.size / 1e6:.1f} MB, used {item.used:%Y-%m-%d %H:%M}")
    print(stage.build_cache(limits, run, dry_run=dry_run))
