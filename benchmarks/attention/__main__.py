"""Torch's own attention against FlashAttention-4 behind it, in turns, on one GPU.

    docker run --rm --gpus all -v "$PWD/benchmarks/attention:/attention:ro" \
        torch-cu130:sm90-attention python /attention --output - > result.json

It needs an image with the extra `flash-attention`. Each row calls torch's own functions, and only
the setting of the image differs between the two. They take turns call by call, so that a GPU whose
clock falls is the same to both. `docs/attention.md` shows the results, and
scripts/image/attention/rules.py follows from them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812  its customary name
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


def milliseconds(call: Callable[[], object], count: int) -> float:
    """Time of one of `count` calls after each other, by events of the GPU."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(count):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / count


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


def main() -> None:
    """Measure all shapes, or as many as the time allows, and write the result."""
    parser = argparse.ArgumentParser(description="Torch's attention against FlashAttention-4.")
    parser.add_argument("--output", default="-", help="file for the result as JSON; - prints it")
    parser.add_argument("--seconds", type=float, default=600, help="start no row after this time")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    rows = []
    for *shape, dtype in SHAPES:
        for causal in (True, False):
            if time.monotonic() > end:
                break
            row = measure(tuple(map(int, shape)), str(dtype), causal=causal)
            rows.append(row)
            ratios = ", ".join(f"{name} {p.ratio:.3f}" for name, p in row.pairs.items())
            print(row.shape, row.dtype, "causal" if causal else "full", ratios, file=sys.stderr)
    result = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "cudnn": torch.backends.cudnn.version(),
        "failed": fa4.broken(),
        "rows": [asdict(row) for row in rows],
    }
    text = json.dumps(result, indent=1)
    if options.output == "-":
        print(text)
    else:
        with open(options.output, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text + "\n")


if __name__ == "__main__":
    main()
