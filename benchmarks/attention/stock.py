"""Torch's own kernels of attention in turns: FlashAttention-2, cuDNN's, and what torch takes.

    docker run --rm --gpus all -v "$PWD/benchmarks/attention:/attention:ro" \
        torch-cu128:sm90 python /attention/stock.py > result.json

Medians in milliseconds of a forward pass, and of one with its gradients, for docs/attention.md.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  its customary name
from timing import milliseconds
from torch.nn.attention import SDPBackend, sdpa_kernel

ROUNDS, WARM = 13, 3
HALF, BRAIN = torch.float16, torch.bfloat16
# Batch, heads, heads of key and value, length, width, type.
SHAPES = (
    (16, 96, 96, 4096, 128, HALF), (1, 32, 32, 16384, 128, HALF), (4, 32, 32, 4096, 128, HALF),
    (4, 32, 8, 4096, 128, BRAIN), (8, 32, 32, 2048, 128, BRAIN), (4, 32, 32, 2048, 128, BRAIN),
    (16, 32, 32, 1024, 128, BRAIN), (4, 32, 32, 1024, 128, HALF), (8, 12, 12, 2048, 64, HALF),
    (4, 32, 32, 8192, 64, BRAIN), (8, 12, 12, 1024, 64, HALF),
)  # fmt: skip
EVERY = [
    SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
    SDPBackend.CUDNN_ATTENTION,
]  # fmt: skip
KERNELS = {"flash": EVERY[:1], "cudnn": EVERY[3:], "default": EVERY}


def in_turns(call: Callable[[], object]) -> dict[str, float]:
    """The median of each kernel."""
    times: dict[str, list[float]] = {name: [] for name in KERNELS}
    for number in range(ROUNDS):
        for name, backends in KERNELS.items():
            with sdpa_kernel(backends):
                taken = milliseconds(call)
            if number >= WARM:
                times[name].append(taken)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Print all as JSON."""
    rows = []
    for *shape, dtype in SHAPES:
        batch, heads, keys, length, width = shape
        given = [
            torch.randn(batch, n, length, width, device="cuda", dtype=dtype, requires_grad=True)
            for n in (heads, keys, keys)
        ]
        upstream = torch.randn_like(given[0])
        for causal in (True, False):

            def forward(
                leaves: list[torch.Tensor] = given,
                mask: bool = causal,
                groups: bool = heads != keys,
            ) -> torch.Tensor:
                return F.scaled_dot_product_attention(*leaves, is_causal=mask, enable_gqa=groups)

            def training(
                leaves: list[torch.Tensor] = given, gradient: torch.Tensor = upstream
            ) -> object:
                return torch.autograd.grad(forward(), leaves, gradient)

            with torch.no_grad():
                row = {"forward": in_turns(forward)}
            row["training"] = in_turns(training)
            rows.append({"shape": shape, "dtype": str(dtype)[6:], "causal": causal, **row})
    gpu = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(json.dumps({**gpu, "cudnn": torch.backends.cudnn.version(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
