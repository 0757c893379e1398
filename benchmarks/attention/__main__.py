"""Torch's own attention against FlashAttention-4 behind it, in turns, on one GPU.

    docker run --rm --gpus all -v "$PWD/benchmarks/attention:/attention:ro" \
        torch-cu130:sm90-attention python /attention --output - > result.json

`--measure` says what: the shapes of the report, the grid that rules.py follows from (240 s on an
H100), the first call of a process, or how far scores may grow (a minute each).

It needs an image with the extra `flash-attention`. Elsewhere, PYTHONPATH names a folder in which
torch_image_attention is a copy of scripts/image/attention. Each row calls torch's own functions,
and only the setting of the image differs between the two. They take turns call by call, so that a
GPU whose clock falls is the same to both. `docs/attention.md` shows the results, and
scripts/image/attention/rules.py follows from them (thresholds.py).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  its customary name
from timing import milliseconds
from torch_image_attention import fa4, routes

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
STOCK, OURS = "stock", "fa4"
LONG = 3e12  # operations from which a row has fewer rounds
# Batch, heads, heads of key and value, length, width, type. The first one is the documents'.
SHAPES = (
    (16, 96, 96, 4096, 128, "fp16"),
    (1, 32, 32, 16384, 128, "fp16"),
    (4, 32, 32, 4096, 128, "fp16"),
    (4, 32, 8, 4096, 128, "bf16"),
    (2, 32, 8, 8192, 128, "bf16"),
    (1, 32, 32, 4096, 128, "bf16"),
    (8, 32, 32, 2048, 128, "bf16"),
    (4, 32, 32, 2048, 128, "bf16"),
    (2, 32, 8, 2048, 128, "bf16"),
    (1, 32, 32, 2048, 128, "bf16"),
    (16, 32, 32, 1024, 128, "bf16"),
    (4, 32, 32, 1024, 128, "fp16"),
    (8, 12, 12, 2048, 64, "fp16"),
    (4, 32, 32, 8192, 64, "bf16"),
    (16, 16, 16, 2048, 64, "bf16"),
    (8, 16, 16, 2048, 96, "fp16"),
    (2, 16, 16, 4096, 96, "bf16"),
    (32, 16, 16, 1024, 64, "bf16"),
    (8, 12, 12, 1024, 64, "fp16"),
    (1, 16, 16, 32768, 128, "bf16"),
)


@dataclass(frozen=True)
class Pair:
    """Milliseconds of both, and the ratio of ours to torch's: median, lower and upper quartile."""

    stock: float
    ours: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One shape. `call` waits for each call, `queued` has calls follow each other.

    `backward` is the gradient alone, `training` a forward and a backward pass.
    """

    shape: tuple[int, ...]
    dtype: str
    causal: bool
    operations: float
    pairs: dict[str, Pair] = field(default_factory=dict)


def pair(call: Callable[[], object], rounds: int, count: int = 1) -> Pair:
    """Both in turns; who is first changes from round to round."""
    times: dict[str, list[float]] = {STOCK: [], OURS: []}
    for mode in times:
        routes.register(mode)
        for _ in range(3):
            call()
    for number in range(rounds):
        for mode in (STOCK, OURS) if number % 2 else (OURS, STOCK):
            routes.register(mode)
            times[mode].append(milliseconds(call, count))
    return compared(times)


def compared(times: dict[str, list[float]]) -> Pair:
    """Of the milliseconds of both, turn by turn."""
    ratios = [b / a for a, b in zip(times[STOCK], times[OURS], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Pair(statistics.median(times[STOCK]), statistics.median(times[OURS]), middle, low, high)


def measure(shape: tuple[int, ...], dtype: str, *, causal: bool) -> Row:
    """All pairs of one shape."""
    batch, heads, keys, length, width = shape
    query, key, value, upstream = (
        torch.randn(batch, n, length, width, device="cuda", dtype=DTYPES[dtype])
        for n in (heads, keys, keys, heads)
    )
    operations = 4.0 * batch * heads * length**2 * width / (2 if causal else 1)
    rounds = 9 if operations > LONG else 21
    together = max(2, min(10, int(3e12 / operations)))
    given = [t.detach().requires_grad_() for t in (query, key, value)]

    def forward(*tensors: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*tensors, is_causal=causal, enable_gqa=keys != heads)

    routes.register(STOCK)
    out = forward(*given)
    with torch.no_grad():
        call = pair(lambda: forward(query, key, value), rounds)
        queued = pair(lambda: forward(query, key, value), rounds, together)
    backward = pair(lambda: torch.autograd.grad(out, given, upstream, retain_graph=True), rounds)
    training = pair(lambda: torch.autograd.grad(forward(*given), given, upstream), rounds)
    return Row(
        shape=shape,
        dtype=dtype,
        causal=causal,
        operations=operations,
        pairs={"call": call, "queued": queued, "backward": backward, "training": training},
    )


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of the grid: batch, heads, heads of key and value, queries, keys, width."""

    shape: tuple[int, int, int, int, int, int]
    dtype: str
    causal: bool
    deterministic: bool

    @property
    def operations(self) -> float:
        """Floating-point operations of the forward pass."""
        batch, heads, _, queries, keys, width = self.shape
        return 4.0 * batch * heads * queries * keys * width / (2 if self.causal else 1)


GRAPHED = 4  # calls in a CUDA graph
HEADS = 16
GRID_WIDTHS, GRID_LENGTHS = (64, 96, 128), (1024, 1280, 2048, 4096)
GRID_OPERATIONS = (3.5e10, 7e10, 1.4e11, 2.8e11, 5.6e11)
# Shapes of no report that were measured by hand, here again beside the grid.
HELD_OUT = (
    Cell(shape=(1, 16, 16, 16384, 16384, 128), dtype="bf16", causal=False, deterministic=True),
    Cell(shape=(4, 32, 8, 4096, 4096, 128), dtype="bf16", causal=False, deterministic=True),
    Cell(shape=(4, 32, 32, 2048, 2048, 64), dtype="bf16", causal=False, deterministic=True),
    Cell(shape=(16, 16, 16, 1280, 1280, 96), dtype="bf16", causal=False, deterministic=False),
    Cell(shape=(1, 16, 16, 65536, 1024, 64), dtype="bf16", causal=False, deterministic=False),
    Cell(shape=(8, 32, 4, 2048, 2048, 64), dtype="bf16", causal=False, deterministic=False),
    Cell(shape=(8, 32, 4, 2048, 2048, 64), dtype="bf16", causal=True, deterministic=False),
    Cell(shape=(1, 24, 24, 4096, 4096, 128), dtype="bf16", causal=True, deterministic=False),
    Cell(shape=(2, 16, 16, 4096, 4096, 96), dtype="fp16", causal=True, deterministic=False),
    Cell(shape=(2, 25, 25, 4099, 4099, 64), dtype="fp16", causal=True, deterministic=False),
    Cell(shape=(36, 32, 32, 1024, 1024, 128), dtype="fp16", causal=True, deterministic=False),
)


def grid() -> Iterator[Cell]:
    """All points. Where the time ends before, it leaves out deterministic ones, of all kinds."""
    cells: set[Cell] = set()
    for width in GRID_WIDTHS:
        for length in GRID_LENGTHS:
            for causal in (False, True):
                one = 4.0 * HEADS * length**2 * width / (2 if causal else 1)
                for batch in {max(1, round(least / one)) for least in GRID_OPERATIONS}:
                    shape = (batch, HEADS, HEADS, length, length, width)
                    cells |= {
                        Cell(shape=shape, dtype="bf16", causal=causal, deterministic=mode)
                        for mode in (False, True)
                    }
    yield from HELD_OUT
    mixed = random.Random(0).sample(sorted(cells, key=repr), len(cells))  # noqa: S311
    yield from sorted(mixed, key=lambda cell: cell.deterministic)


def captured(prepare: Callable[[], Callable[[], object]], rounds: int = 7) -> Pair:
    """Both as CUDA graphs of four calls each, replayed in turns.

    `prepare` gives the call. A backward pass runs on the stream of its forward pass, so that has to
    be the stream that is captured.
    """
    graphs = {STOCK: torch.cuda.CUDAGraph(), OURS: torch.cuda.CUDAGraph()}
    kept = {}  # the tensors that the graphs read
    for mode, graph in graphs.items():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            routes.register(STOCK)
            call = kept[mode] = prepare()
            routes.register(mode)
            call()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(GRAPHED):
                call()
        graph.replay()
    times: dict[str, list[float]] = {mode: [] for mode in graphs}
    for number in range(rounds):
        for mode in (STOCK, OURS) if number % 2 else (OURS, STOCK):
            times[mode].append(milliseconds(graphs[mode].replay) / GRAPHED)
    return compared(times)


def measure_cell(cell: Cell) -> dict[str, Any]:
    """The pairs of one point: one call, calls in a row, backward, and both in CUDA graphs."""
    batch, heads, keys_heads, queries, keys, width = cell.shape
    given = [
        torch.randn(batch, n, length, width, device="cuda", dtype=DTYPES[cell.dtype])
        for n, length in ((heads, queries), (keys_heads, keys), (keys_heads, keys))
    ]
    grads = [t.detach().requires_grad_() for t in given]
    upstream = torch.randn_like(given[0])

    def forward(*tensors: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(
            *tensors, is_causal=cell.causal, enable_gqa=keys_heads != heads
        )

    def gradients(out: torch.Tensor, leaves: list[torch.Tensor] = grads) -> object:
        return torch.autograd.grad(out, leaves, upstream, retain_graph=True)

    def backward_alone() -> Callable[[], object]:
        leaves = [t.detach().requires_grad_() for t in given]  # of the stream that is captured
        return partial(gradients, forward(*leaves), leaves)

    torch.use_deterministic_algorithms(cell.deterministic)
    try:
        routes.register(STOCK)
        out = forward(*grads)
        with torch.no_grad():
            call = pair(lambda: forward(*given), 11)
            queued = pair(lambda: forward(*given), 7, 4)
        pairs = {"call": call, "queued": queued, "backward": pair(lambda: gradients(out), 11)}
        if not cell.deterministic:
            pairs["graph"] = captured(lambda: partial(forward, *given))
            pairs["graph_backward"] = captured(backward_alone)
    finally:
        torch.use_deterministic_algorithms(mode=False)
    return {
        **asdict(cell), "operations": cell.operations,
        "pairs": {name: asdict(found) for name, found in pairs.items()},
    }  # fmt: skip


FIRST = """
import json, os, time
import torch
import torch_image_attention
torch_image_attention.activate()
query = torch.randn(1, 16, 4096, 128, device="cuda", dtype=torch.half, requires_grad=True)
torch.cuda.synchronize()
times, began = {}, time.perf_counter()

def note(name):
    torch.cuda.synchronize()
    times[name] = time.perf_counter() - began

if os.environ["TORCH_IMAGE_ATTENTION"] == "fa4":
    torch_image_attention.routes.fa4.ready(waits=True)
    note("imported")
out = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
note("forward")
out.sum().backward()
note("backward")
print(json.dumps(times))
"""


def first_calls() -> Generator[dict[str, Any]]:
    """Seconds from the first call of a process on: torch's own, an empty cache, a full one."""
    with tempfile.TemporaryDirectory() as folder:
        for name, mode in (("stock", STOCK), ("cold", OURS), *(("warm", OURS),) * 3):
            done = subprocess.run(
                [sys.executable, "-c", FIRST], capture_output=True, text=True, check=True,
                env={
                    **os.environ, "TORCH_IMAGE_ATTENTION": mode,
                    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": folder,
                },
            )  # fmt: skip
            yield {"cache": name, **json.loads(done.stdout)}


def exact(*given: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention in float64."""
    query, key, value = given
    return (query @ key.mT * scale).softmax(-1) @ value


def large_scores() -> Generator[dict[str, Any]]:
    """Errors against float64 while the scores grow, as a share of the largest right value.

    Each key is there four times, so that no row has one weight of 1 and gradients of 0.
    """
    torch.manual_seed(0)
    parts = [torch.randn(1, 2, 512, 128, device="cuda", dtype=torch.float64) for _ in range(4)]
    parts[1] = parts[1][:, :, :128].repeat(1, 1, 4, 1)
    for (name, dtype), power in itertools.product(DTYPES.items(), range(31)):
        size = 2 ** (power / 2)  # of one value; the scores are alike to some percent
        if size * 1.5 > torch.finfo(dtype).max:
            continue
        given = [size * (1 + p / 64) for p in parts[:2]] + [parts[2]]
        halves = [t.to(dtype).requires_grad_() for t in given]
        doubles = [t.detach().double().requires_grad_() for t in halves]
        right = exact(*doubles, scale=128**-0.5)
        rights = (right, *torch.autograd.grad(right, doubles[1:], parts[3]))
        row: dict[str, Any] = {"dtype": name, "score": size**2 * 128**0.5}
        for mode in (STOCK, OURS):
            routes.register(mode)
            out = F.scaled_dot_product_attention(*halves)
            found = (out, *torch.autograd.grad(out, halves[1:], parts[3].to(dtype)))
            row[mode] = {
                part: float((ours - theirs).abs().max() / theirs.abs().max())
                for part, ours, theirs in zip(("out", "key", "value"), found, rights, strict=True)
            }
        yield row


def shapes() -> Generator[dict[str, Any]]:
    """The rows of the report."""
    for *shape, dtype in SHAPES:
        for causal in (True, False):
            yield asdict(measure(tuple(map(int, shape)), str(dtype), causal=causal))


MEASURES: dict[str, Callable[[], Generator[dict[str, Any]]]] = {
    "shapes": shapes,
    "grid": lambda: (measure_cell(cell) for cell in grid()),
    "first": first_calls,
    "scores": large_scores,
}


def main() -> None:
    """Measure, as much as the time allows, and write the result."""
    parser = argparse.ArgumentParser(description="Torch's attention against FlashAttention-4.")
    parser.add_argument("--measure", choices=MEASURES, default="shapes")
    parser.add_argument("--output", default="-", help="file for the result as JSON; - prints it")
    parser.add_argument("--seconds", type=float, default=600, help="start no row after this time")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    rows = []
    with contextlib.closing(MEASURES[options.measure]()) as measured:
        for row in measured:
            rows.append(row)
            print({k: v for k, v in row.items() if k != "pairs"}, *ratios(row), file=sys.stderr)
            if time.monotonic() > end:
                break
    result = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "cudnn": torch.backends.cudnn.version(),
        "measure": options.measure,
        "failed": fa4.broken(),
        "rows": rows,
    }
    text = json.dumps(result, indent=1)
    if options.output == "-":
        print(text)
    else:
        with open(options.output, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text + "\n")


def ratios(row: dict[str, Any]) -> Iterator[str]:
    """What a line on the terminal says of a row's pairs."""
    for name, found in row.get("pairs", {}).items():
        yield f"{name} {found['ratio']:.3f}"


if __name__ == "__main__":
    main()
