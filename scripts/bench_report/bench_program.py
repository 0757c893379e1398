"""Reports and comparisons of what scripts/bench measured.

    python scripts/bench_report/bench_program.py write RESULT FOLDER
    python scripts/bench_report/bench_program.py compare FIRST SECOND

`write` puts README.md and plots into a folder, with the reference results beside them. `compare`
takes paths of results, and names of references, such as h100.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench_results import read

from torch_images.errors import TorchImagesError

REFERENCES = Path(__file__).resolve().parents[2] / "benchmarks" / "reference"


def main() -> None:
    parser = argparse.ArgumentParser(description="report and compare results of scripts/bench")
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("result", type=Path)
    write.add_argument("folder", type=Path)
    compare = commands.add_parser("compare")
    compare.add_argument("first", type=Path)
    compare.add_argument("second", type=Path)
    options = parser.parse_args()
    try:
        if options.command == "write":
            _write(options.result, options.folder)
        else:
            _compare(options.first, options.second)
    except TorchImagesError as error:
        sys.exit(str(error))


def _write(path: Path, folder: Path) -> None:
    from bench_plots import plots
    from bench_report import markdown

    result = read(path)
    references = [read(each) for each in sorted(REFERENCES.glob("*.json"))]
    text = markdown(result, references, plots(result, folder))
    (folder / "README.md").write_text(text)


def _compare(first: Path, second: Path) -> None:
    from bench_compare import compare, compared

    names = (REFERENCES / f"{path}.json" for path in (first, second))
    a, b = (read(n if n.is_file() else p) for n, p in zip(names, (first, second), strict=True))
    print(compared(a, b, compare(a, b)))


if __name__ == "__main__":
    main()
