"""Measure builds against plain and tuned Dockerfiles with the same wheels, side by side.

    python -m benchmarks.builds [--rounds N] [--row NAME]... [--output FOLDER] [--resume] [--keep]

Builds the last commit. Empties BuildKit's store and removes images of torch-images on the way.
What was measured is kept after each row, and `--resume` goes on from there. On two processors a
round of the rows cold, whole, tuned, user, again and edit takes some 16 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.builds.lab import ROOT, Lab
from benchmarks.builds.report import left_out, plot, summary, table
from benchmarks.builds.rows import LEAVES_OUT, ROWS, Figures, rounds
from torch_images.host.connection import connect
from torch_images.host.network import detect
from torch_images.host.runner import Runner
from torch_images.jobs import processors

# What makes an image, and what measures it.
_SOURCES = ("benchmarks/builds", "docker", "images.yaml", "locks", "scripts", "torch_images")


def main() -> None:
    """Measure, and write the figures, a table and a plot."""
    parser = argparse.ArgumentParser(prog="benchmarks.builds", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--row", action="append", choices=list(ROWS), help="only this; repeatable")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--resume", action="store_true", help="add what OUTPUT/builds.json lacks")
    parser.add_argument("--keep", action="store_true", help="leave the last row's images, to pull")
    options = parser.parse_args()
    engine, run = connect(), Runner()
    rows = tuple(options.row or ROWS)
    kept = options.output / "builds.json"
    commit = run.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"]).output.strip()
    docker = run.run(["docker", "version", "--format={{.Server.Version}}"]).output.strip()
    head: dict[str, Any] = {"commit": commit, "machine": machine(docker)}
    figures: dict[str, list[Figures]] = {}
    if options.resume:
        head, figures = read(kept, head, run)
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="torch-images-bench-") as scratch:
        folder = Path(scratch)
        run.run(["git", "clone", "--quiet", str(ROOT), str(folder / "project")])
        (folder / "cache").mkdir()
        lab = Lab(
            engine=engine,
            run=run,
            network=detect(os.environ),
            project=folder / "project",
            cache=folder / "cache",
        )
        lab.base()
        lab.invoke("build", "--cuda", "13.0", "--dry-run")
        options.output.mkdir(parents=True, exist_ok=True)
        for name, found in rounds(lab, rows, options.rounds, figures):
            figures.setdefault(name, []).append(found)
            kept.write_text(json.dumps({**head, "rows": figures}, indent=1) + "\n")
        if not options.keep:
            lab.empty()
    lines = summary(figures)
    text = f"{table(lines)}\n{left_out({row: LEAVES_OUT[row] for row in figures})}"
    (options.output / "builds.md").write_text(text)
    plot(lines, options.output / "builds.svg")
    print(text)


def read(
    kept: Path, head: Mapping[str, Any], run: Runner
) -> tuple[dict[str, Any], dict[str, list[Figures]]]:
    """What an earlier run measured on the same machine; ends here if it built other sources."""
    if not kept.exists():
        raise SystemExit(f"there is no {kept} to go on from; leave --resume out")
    document = json.loads(kept.read_text())
    figures: dict[str, list[Figures]] = document.pop("rows")
    compare = ["git", "-C", str(ROOT), "diff", "--quiet", document["commit"], str(head["commit"])]
    differs = run.run([*compare, "--", *_SOURCES], check=False).code
    if differs or document["machine"] != head["machine"]:
        raise SystemExit(f"{kept} is of other sources or another machine; leave --resume out")
    return document, figures


def machine(engine: str) -> dict[str, Any]:
    """What the figures are of."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": cpu,
        "cores": processors(),
        "memory": memory,
        "disk": shutil.disk_usage("/").total,
        "docker": engine,
    }


if __name__ == "__main__":
    main()
