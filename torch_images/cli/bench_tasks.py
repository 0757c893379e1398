"""Verbs that benchmark images and compare the results."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from torch_images.cli import verb
from torch_images.cli.options import GPUS, Image, Options, option, word
from torch_images.errors import CommandError, EngineError, TorchImagesError, UsageError
from torch_images.host import outputs
from torch_images.host.container import RunningContainer
from torch_images.host.gpus import Request, device_requests
from torch_images.host.runner import Runner
from torch_images.project import PACKAGE
from torch_images.verify.identify import identify

RESULT, REPORT = "result.json", "README.md"
_INSIDE = "/run/result.json"  # written by the benchmark in the container


class Bench(Image):
    gpus: Sequence[Request] = option(
        f"GPUs to measure (default: all): {GPUS}",
        default=(),
        type=device_requests,
    )
    select: str = option(
        "only cases that match this glob; `python scripts/bench --list` lists them", default="*"
    )
    output: str = option(
        "folder for the result, report and plots: new, or holding earlier ones (default: "
        "build/bench/IDENTIFIER)"
    )


@verb.verb(Bench, example="bench torch-cu130:sm120 --select 'sdpa*'")
def bench(options: Bench) -> verb.Result:
    """Benchmark GPUs with an image; write a report and plots."""
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
        # Images do not contain the program, so a new case changes no image.
        cases = sorted((verb.ROOT / "scripts" / "bench").glob("*.py"))
        container.put("/run", {f"bench/{path.name}": path.read_bytes() for path in cases})
        command += ["torch-entrypoint", "python", "/run/bench", f"--select={options.select}"]
        command += [f"--output={_INSIDE}"]
        try:
            Runner().run(command, show_errors=True)
        except (CommandError, KeyboardInterrupt) as error:
            _keep_part(container)
            if isinstance(error, CommandError):
                raise TorchImagesError("the benchmark failed, see above") from None
            raise
        result = container.read(_INSIDE)
    with outputs.filling(folder) as new:
        (new / RESULT).write_bytes(result)
        _reporter("write", str(new / RESULT), str(new))
    return verb.Result(text=f"{folder / REPORT} was written")


class BenchCompare(Options):
    first: str = word("result of a benchmark, or rtx5090 or h100 for the reference results")
    second: str = word("the result to compare it with")


@verb.verb(BenchCompare, example="bench-compare docs/benchmarks/h200/result.json rtx5090")
def bench_compare(options: BenchCompare) -> verb.Result:
    """Compare two results; mark significant differences."""
    _need("scipy")
    return verb.Result(text=_reporter("compare", options.first, options.second).rstrip("\n"))


def _need(package: str) -> None:
    """Raise UsageError if a package that only benchmarks need is not installed."""
    if not find_spec(package):
        raise UsageError(
            f"plots and comparisons of benchmarks need {package}, which is not installed",
            "install torch-images[bench], or run this in a clone, as ./inv",
        )


def _keep_part(container: RunningContainer) -> None:
    """Save the results of an interrupted benchmark to a new file; print its path."""
    with contextlib.suppress(EngineError):  # no file before the first case ends
        partial = container.read(f"{_INSIDE}.part")
        target = Path(tempfile.mkdtemp(prefix="torch-images-bench-"), RESULT)
        target.write_bytes(partial)
        verb.say(f"the results so far are in {target}")


def _reporter(*words: str) -> str:
    """Run bench_program.py. Returns its output; raises UsageError with its last line."""
    program = str(verb.ROOT / "scripts" / "bench_report" / "bench_program.py")
    env = {"PYTHONPATH": str(PACKAGE.parent)}
    try:
        return Runner().run([sys.executable, program, *words], env=env).output
    except CommandError as error:
        raise UsageError(error.output.strip().splitlines()[-1]) from None
