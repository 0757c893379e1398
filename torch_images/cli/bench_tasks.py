"""The verbs that measure and compare."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch_images.cli import verb
from torch_images.cli.options import GPUS, Image, Json, Options, option, word
from torch_images.errors import UsageError
from torch_images.host.gpus import Request, device_requests

if TYPE_CHECKING:
    from torch_images.host.container import RunningContainer

REFERENCE = verb.ROOT / "benchmarks" / "reference"
RESULT, REPORT = "result.json", "README.md"
_INSIDE = "/run/result.json"  # where the program in the container writes


class Bench(Image):
    gpus: Sequence[Request] = option(
        f"which to measure, else all: {GPUS}",
        default=(),
        parse=lambda _, words: device_requests(words),
    )
    select: str = option(
        "only cases that match this glob; `python scripts/bench --list` names them", default="*"
    )
    output: str = option(
        "folder for the result, its report and plots, new or with earlier ones, else "
        "build/bench/IDENTIFIER"
    )


@verb.verb(Bench, example="bench torch-cu130:sm120 --select 'sdpa*'")
def bench(options: Bench) -> None:
    """Measure GPUs with an image: the documents' tables, as JSON, Markdown and plots."""
    from torch_images.errors import CommandError, TorchImagesError
    from torch_images.host import outputs
    from torch_images.host.runner import Runner
    from torch_images.verify.identify import identify

    _need("matplotlib")
    config, workspace, engine = verb.config(), verb.workspace(), verb.engine()
    reference, plan = identify(config, options.image, workspace, engine)
    folder = Path(options.output) if options.output else workspace.output / "bench" / plan.spec.id
    outputs.claim(folder)
    info = engine.inspect(reference)
    with engine.container(
        info.id,
        network_mode="none",
        shm_size="2g",
        device_requests=list(options.gpus) or device_requests("all"),
    ) as container:
        command = ["docker", "exec", "--env=TORCH_IMAGE_QUIET=1", container.id]
        container.put("/run", {f"bench/{path.name}": path.read_bytes() for path in _cases()})
        command += ["torch-entrypoint", "python", "/run/bench", f"--select={options.select}"]
        command += [f"--output={_INSIDE}"]
        try:
            Runner().run(command, show_errors=True)
        except CommandError:
            _keep_part(container, folder)
            raise TorchImagesError("the benchmark failed, see above") from None
        except KeyboardInterrupt:
            _keep_part(container, folder)
            raise
        found = container.read(_INSIDE).decode()
    _write(found, folder, keep=True)


class BenchReport(Options):
    result: str = word("what torch-bench wrote")
    output: str = option(
        "folder to write, new or with an earlier report, else one beside the result, of its name"
    )


@verb.verb(BenchReport, example="bench-report result.json")
def bench_report(options: BenchReport) -> None:
    """Write the report and the plots of a result."""
    from torch_images.bench.results import read

    _need("matplotlib")
    result = Path(options.result)
    read(result)
    _write(result.read_text(), Path(options.output or result.with_suffix("")))


class BenchCompare(Json):
    first: str = word("a result of torch-bench, or rtx5090 or h100 for a document's figures")
    second: str = word("the result to compare it with")


@verb.verb(BenchCompare, example="bench-compare docs/benchmarks/h200/result.json rtx5090")
def bench_compare(options: BenchCompare) -> None:
    """Two results side by side, and which differences are more than chance."""
    from dataclasses import asdict

    from torch_images.bench.compare import compare, compared
    from torch_images.bench.results import read

    _need("scipy")
    a, b = (read(_path(word)) for word in (options.first, options.second))
    differences = compare(a, b)
    rows = [{**asdict(d), "ratio": d.ratio, "verdict": d.verdict} for d in differences]
    print(verb.as_json(rows) if options.json else compared(a, b, differences))


def _need(package: str) -> None:
    """Raise UsageError where a package that only benchmarks need is not installed."""
    from importlib.util import find_spec

    if not find_spec(package):
        raise UsageError(
            f"{package} is not installed, which plots and comparisons of benchmarks need",
            "install torch-images[bench]; ./inv does so by itself",
        )


def _keep_part(container: RunningContainer, folder: Path) -> None:
    """Keep what a benchmark that broke off had found, beside earlier files; say where."""
    from torch_images.errors import EngineError
    from torch_images.host import outputs

    with contextlib.suppress(EngineError):  # there is none before the first case is over
        found = container.read(f"{_INSIDE}.part")
        with outputs.saying(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for number in itertools.count(1):
                target = folder / f"{RESULT}.part{number if number > 1 else ''}"
                with contextlib.suppress(FileExistsError), target.open("xb") as stream:
                    stream.write(found)
                    break
            outputs.mark(folder, folder, target.name)
        verb.say(f"the results so far are in {target}")


def _cases() -> list[Path]:
    """The program that measures. No image has it: a new case would be a new image."""
    return sorted((verb.ROOT / "scripts" / "bench").glob("*.py"))


def _path(word: str) -> Path:
    """A result by path, or reference data by name."""
    named = REFERENCE / f"{word}.json"
    return named if named.is_file() else Path(word)


def _write(text: str, folder: Path, *, keep: bool = False) -> None:
    """Markdown and plots of a result, beside the documents' figures; `keep` the result as well.

    Raises UsageError for a folder with anything else in it, see host/outputs.py.
    """
    from torch_images.bench.plots import plots
    from torch_images.bench.report import markdown
    from torch_images.bench.results import read
    from torch_images.host import outputs

    references = [read(path) for path in sorted(REFERENCE.glob("*.json"))]
    path = outputs.claim(folder)
    with outputs.saying(folder):
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".torch-images-") as scratch:
            made = Path(scratch)
            (made / RESULT).write_text(text)
            measured = read(made / RESULT)
            (made / REPORT).write_text(markdown(measured, references, plots(measured, made)))
            if not keep:
                (made / RESULT).unlink()
            outputs.mark(path, made)
            for file in made.iterdir():
                os.replace(file, path / file.name)
    print(f"{folder / REPORT} was written")
