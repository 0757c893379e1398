"""The verbs that measure and compare; see tasks.py."""

from __future__ import annotations

from pathlib import Path

from invoke.context import Context

from torch_images import cli

REFERENCE = cli.ROOT / "benchmarks" / "reference"


@cli.verb(
    positional=["image"],
    help={
        "image": "tag, image id or identifier",
        "gpus": "which to measure: all, a number, or device=0,1",
        "select": "only cases that match this glob; `torch-bench --list` in the image names them",
        "output": "folder for the result, its report and plots, else build/bench/IDENTIFIER",
    },
)
def bench(c: Context, image: str, gpus: str = "all", select: str = "*", output: str = "") -> None:
    """Measure GPUs with an image: the documents' tables, as JSON, Markdown and plots."""
    from torch_images import publish
    from torch_images.engine import gpus as with_gpus
    from torch_images.errors import TorchImagesError
    from torch_images.runner import Runner

    options = with_gpus(gpus)
    config, place, engine = cli.config(), cli.place(), cli.engine()
    reference, planned = publish.identify(config, image, place, engine)
    folder = Path(output) if output else place.output / "bench" / planned.spec.id
    with engine.container(engine.inspect(reference).id, shm_size="2g", **options) as container:
        command = ["docker", "exec", "--env=TORCH_IMAGE_QUIET=1", container.id]
        command += ["torch-entrypoint", "torch-bench", f"--select={select}"]
        done = Runner().run(command, check=False, show_errors=True)
    if done.code:
        raise TorchImagesError("torch-bench failed, see above")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(done.output)
    _report(folder / "result.json", folder)


@cli.verb(
    positional=["result"],
    help={
        "result": "what torch-bench wrote",
        "output": "folder to write to, else the result's own",
    },
)
def bench_report(c: Context, result: str, output: str = "") -> None:
    """Write the report and the plots of a result."""
    folder = Path(output) if output else Path(result).parent
    _report(Path(result), folder)


@cli.verb(
    positional=["first", "second"],
    help={
        "first": "a result of torch-bench, or rtx5090 or h100 for a document's figures",
        "second": "another one",
        "json": "print JSON",
    },
)
def bench_compare(c: Context, first: str, second: str, json: bool = False) -> None:
    """Two results side by side, and which differences are more than chance."""
    from dataclasses import asdict

    from torch_images import bench as stage

    a, b = (stage.read(_path(word)) for word in (first, second))
    found = stage.compare(a, b)
    rows = [{**asdict(d), "ratio": d.ratio, "verdict": d.verdict} for d in found]
    print(cli.as_json(rows) if json else stage.compared(a, b, found))


def _path(word: str) -> Path:
    """A result by path, or reference data by name."""
    named = REFERENCE / f"{word}.json"
    return named if named.is_file() else Path(word)


def _report(result: Path, folder: Path) -> None:
    """Markdown and plots of a result, beside the documents' figures."""
    from torch_images import bench as stage
    from torch_images.bench_plots import plots

    found = stage.read(result)
    folder.mkdir(parents=True, exist_ok=True)
    references = [stage.read(path) for path in sorted(REFERENCE.glob("*.json"))]
    text = stage.markdown(found, references, plots(found, folder))
    (folder / "README.md").write_text(text)
    print(f"{folder / 'README.md'} was written")
