"""Measure this GPU with this torch, and write the results as JSON.

    python bench [--output FILE] [--select GLOB ...] [--list]

Results keep every sample, so that two of them can be compared with their spread. While it runs,
FILE.part has the results so far.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from case import Case, Ready, Skipped
from cases import cases
from measure import measure, sets_for

SCHEMA = 2  # 1: convolutions counted taps on padding; no input_bytes, host, device, failed
OWN = "torch's own"
FLASH = ("flash", "fa3", "fa4")  # in names of operators that other libraries bring
CUTE = "flash_attncute"  # in names of FlashAttention-4's kernels
ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_attention_math": "math",
}


@dataclass(frozen=True)
class Progress:
    """Progress of a run: one line on a terminal, or plain lines in a log."""

    total: int
    bar: int = 24

    def __call__(self, done: int, name: str) -> None:
        """Show that `done` cases are done and `name` is next."""
        if not sys.stderr.isatty():
            print(f"{done}/{self.total} {name}", file=sys.stderr, flush=True)
            return
        filled = "#" * (self.bar * done // self.total)
        line = f"\r\033[K[{filled:<{self.bar}}] {done}/{self.total} {name[:60]}"
        print(line, end="\n" if done == self.total else "", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """The machine and the software of the measurements."""
    device = torch.cuda.get_device_properties()
    return {
        "gpu": device.name,
        "capability": f"{device.major}.{device.minor}",
        "gpus": torch.cuda.device_count(),
        "memory_bytes": device.total_memory,
        "l2_bytes": device.L2_cache_size,
        "multiprocessors": device.multi_processor_count,
        "driver": driver(),
        "cpu": next(
            (
                line.partition(":")[2].strip()
                for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")
            ),
            platform.processor(),
        ),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "triton": triton_version(),
    }


def driver() -> str:
    """The version of the kernel's driver; "" if it cannot be read."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return ""
    return next((w for w in words if w.count(".") >= 1 and w.replace(".", "").isdigit()), "")


def triton_version() -> str:
    """The version of torch.compile's Triton; "" if there is none."""
    try:
        import triton
    except ImportError:
        return ""
    return str(triton.__version__)


def reason(case: Case) -> str:
    """Why a case cannot run here; "" if it can."""
    have = torch.cuda.get_device_capability()
    if have < case.needs:
        return f"needs compute capability {'.'.join(map(str, case.needs))}"
    if torch.cuda.device_count() < case.gpus:
        return f"needs {case.gpus} GPUs"
    return ""


def settings() -> dict[str, Any]:
    """The settings of torch during the run."""
    return {
        "cudnn.benchmark": True,
        "cudnn.allow_tf32": True,
        "TORCH_IMAGE_ATTENTION": os.environ.get("TORCH_IMAGE_ATTENTION", "not set"),
        "flash attention": flash(),
        "attention of the image": image_attention(),
    }


def flash() -> str:
    """The implementation of the flash backend of attention."""
    try:
        from torch.nn.attention import current_flash_attention_impl
    except ImportError:
        return OWN
    return current_flash_attention_impl() or OWN


def image_attention() -> str:
    """The mode of the image's own attention extension; TORCH_IMAGE_ATTENTION sets it."""
    try:
        from torch_image_attention import routes
    except ImportError:
        return "none"
    return str(routes.mode)


def kernel(call: Callable[[int], object]) -> str:
    """The attention that a call ran: the backend, and operators of other libraries below it.

    FlashAttention-4 replaces the operator of another backend, so its kernels identify it.
    """
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, acc_events=True) as trace:
        call(0)
        torch.cuda.synchronize()
    events = trace.key_averages()
    keys = {event.key for event in events if event.device_type == DeviceType.CPU}
    taken = any(CUTE in event.key for event in events if event.device_type != DeviceType.CPU)
    by = "" if flash() == OWN else f" ({flash()})"
    found = {name + by * (name == "flash") for key, name in ATTENTION.items() if key in keys}
    others = {key for key in keys if "::" in key and not key.startswith(("aten::", "autograd::"))}
    return " ".join(
        ["FlashAttention-4 for"] * taken
        + sorted(found)
        + sorted(key for key in others if any(word in key.lower() for word in FLASH))
    )


def run(case: Case) -> dict[str, Any]:
    """Measure one case, with its precision of float32 products."""
    torch.set_float32_matmul_precision("high" if case.precision == "tf32" else "highest")
    sets = sets_for(case.size) if case.size else 1
    ready = case.make(sets)
    if not isinstance(ready, Ready):
        ready = Ready(call=ready)
    timing = ready.timing
    if timing is None:
        assert ready.call is not None
        timing = measure(ready.call, sets, range(case.gpus), ready.calls)
    low, high = timing.quartiles
    found: dict[str, Any] = {
        "key": case.key,
        "table": case.table,
        "name": case.name,
        "precision": case.precision,
        "median": timing.median,
        "quartiles": [low, high],
        "samples": [round(sample, 9) for sample in timing.samples],
        "sets": sets if case.size or ready.call else 0,
        "input_bytes": case.size,
    }
    if timing.host:
        found |= {"host": round(timing.host, 9), "device": round(timing.device, 9)}
    for name in ("flops", "moved", "items", "same", "ceiling", "baseline"):
        if getattr(case, name):
            found[name] = getattr(case, name)
    for name, values in (
        ("settings", case.settings), ("figures", ready.figures), ("notes", ready.notes)
    ):  # fmt: skip
        if values:
            found[name] = dict(values)
    if case.items:
        found["unit"] = case.unit
    looked_at = ready.probe or ready.call
    if case.attention and looked_at:
        found["ran"] = kernel(looked_at)
    return found


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the block after some seconds, once Python gets to run."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def measured(case: Case) -> tuple[str, dict[str, Any]]:
    """("cases", the results), or ("skipped" or "failed", the reason)."""
    why = reason(case)
    if why:
        return "skipped", {"key": case.key, "reason": why}
    start = time.perf_counter()
    try:
        with limited(case.limit):
            found = run(case)
        return "cases", {**found, "spent": round(time.perf_counter() - start, 1)}
    except Skipped as skipped:
        return "skipped", {"key": case.key, "reason": str(skipped)[:200]}
    except Exception as error:  # noqa: BLE001  whatever it is, the other cases go on
        first = next(iter(str(error).strip().splitlines()), "")[:200]
        return "failed", {"key": case.key, "reason": first or type(error).__name__}


def results(chosen: list[Case]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The outcome of each case, from `measured`."""
    progress = Progress(len(chosen))
    for number, case in enumerate(chosen):
        progress(number, case.key)
        yield measured(case)
        with suppress(Exception):  # some errors leave the device unusable
            gc.collect()
            torch.cuda.empty_cache()
            torch.compiler.reset()
    progress(len(chosen), "done")


def written(found: dict[str, Any]) -> str:
    """A result as JSON, a line for each case."""
    cases = [json.dumps(case) for case in found["cases"]]
    head = json.dumps({**found, "cases": "CASES"}, indent=1)
    return head.replace('"CASES"', "[\n  " + ",\n  ".join(cases) + "\n ]") + "\n"


def main() -> None:
    """Choose, measure, write."""
    parser = argparse.ArgumentParser(prog="torch-bench", description="Measure this GPU.")
    parser.add_argument("--output", default="-", help="file to write, - for standard output")
    parser.add_argument(
        "--select", action="append", help="only cases whose name matches this glob; repeatable"
    )
    parser.add_argument("--list", action="store_true", help="print the names of all cases")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True
    globs = options.select or ["*"]
    chosen = [case for case in cases() if any(fnmatchcase(case.key, glob) for glob in globs)]
    if options.list:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly if the reader closes the pipe
        print("\n".join(case.key for case in chosen))
        return
    if not chosen:
        sys.exit(f"torch-bench: no case matches '{', '.join(globs)}'; --list names them")
    if not torch.cuda.is_available():
        sys.exit("torch-bench: torch sees no CUDA device; cuda-doctor says why")
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": settings(),
        "cases": [],
        "skipped": [],
        "failed": [],
    }
    output = Path(options.output)
    # Do not replace a device or a link by a file.
    part = None if output.is_symlink() or (output.exists() and not output.is_file()) else output
    part = None if options.output == "-" or part is None else Path(f"{output}.part")
    for kind, value in results(chosen):
        found[kind].append(value)
        if part:
            part.write_text(written(found))
    if part:
        part.replace(output)
    elif options.output == "-":
        print(written(found), end="")
    else:
        output.write_text(written(found))


if __name__ == "__main__":
    main()
