"""Measure builds against a plain `docker build` of the same wheels, side by side.

    python -m benchmarks.builds [--rounds N] [--row NAME]... [--output FOLDER]

Builds the last commit. Empties BuildKit's store and removes images of torch-images on the way.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.builds.lab import ROOT, Lab
from benchmarks.builds.report import plot, summary, table
from benchmarks.builds.rows import ROWS, rounds
from torch_images.engine import connect
from torch_images.network import detect
from torch_images.runner import Runner


def main() -> None:
    """Measure, and write the figures, a table and a plot."""
    parser = argparse.ArgumentParser(prog="benchmarks.builds", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--row", action="append", choices=list(ROWS), help="only this; repeatable")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks"))
    options = parser.parse_args()
    engine, run = connect(), Runner()
    rows = tuple(options.row or ROWS)
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
        figures: dict[str, list[dict[str, float]]] = {name: [] for name in rows}
        options.output.mkdir(parents=True, exist_ok=True)
        for name, _, found in rounds(lab, rows, options.rounds):
            figures[name].append(found)
            document = {"machine": machine(engine.version()), "rows": figures}
            text = json.dumps(document, indent=1) + "\n"
            (options.output / "builds.json").write_text(text)
        lab.empty()
    lines = summary(figures)
    (options.output / "builds.md").write_text(table(lines))
    plot(lines, options.output / "builds.svg")
    print(table(lines))


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
        "cores": len(os.sched_getaffinity(0)),
        "memory": memory,
        "disk": shutil.disk_usage("/").total,
        "docker": engine,
    }


if __name__ == "__main__":
    main()
