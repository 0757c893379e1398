"""Reports and comparisons of what scripts/bench measured.

    python scripts/bench_report/bench_program.py write RESULT FOLDER [REFERENCE ...]
    python scripts/bench_report/bench_program.py compare FIRST SECOND [--json]

`write` puts README.md and plots into a folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from bench_results import read

from torch_images.errors import TorchImagesError


def main() -> None:
    parser = argparse.ArgumentParser(description="report and compare results of scripts/bench")
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("result", type=Path)
    write.add_argument("folder", type=Path)
    write.add_argument("references", type=Path, nargs="*")
    compare = commands.add_parser("compare")
    compare.add_argument("first", type=Path)
    compare.add_argument("second", type=Path)
    compare.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        if options.command == "write":
            _write(options.result, options.folder, options.references)
        else:
            _compare(options.first, options.second, as_json=options.json)
    except TorchImagesError as error:
        sys.exit(str(error))


def _write(path: Path, folder: Path, references: list[Path]) -> None:
    from bench_plots import plots
    from bench_report import markdown

    result = read(path)
    text = markdown(result, [read(each) for each in references], plots(result, folder))
    (folder / "README.md").write_text(text)


def _compare(first: Path, second: Path, *, as_json: bool) -> None:
    from bench_compare import compare, compared

    a, b = read(first), read(second)
    differences = compare(a, b)
    rows = [{**asdict(d), "ratio": d.ratio, "verdict": d.verdict} for d in differences]
    print(json.dumps(rows, indent=2) if as_json else compared(a, b, differences))


if __name__ == "__main__":
    main()
