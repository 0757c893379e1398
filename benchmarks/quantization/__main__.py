r"""Quantize a model in each way of docs/quantization.md: its error, its bytes, its time.

    docker run --rm --gpus all -v "$PWD/benchmarks/quantization:/quantization:ro" IMAGE \
        python /quantization

Names of ways, as arguments, choose among them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import torch
from torch import nn
from torchao.quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8WeightOnlyConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    PerRow,
    quantize_,
)

WAYS = {
    "bf16": None,
    "int8 weights": Int8WeightOnlyConfig(),
    "int8 weights and inputs": Int8DynamicActivationInt8WeightConfig(),
    "int4 weights": Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d"),
    "fp8 weights": Float8WeightOnlyConfig(),
    "fp8 weights and inputs": Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()),
}
SIDE, WIDE, LAYERS = 4096, 11008, 4
ROWS = (32, 4096)  # torch's int8 product wants more than 16


def milliseconds(net: Callable[[torch.Tensor], object], x: torch.Tensor, times: int = 50) -> float:
    """Of a call on the GPU, on average."""
    for _ in range(5):
        net(x)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        net(x)
    end.record()
    torch.cuda.synchronize()
    found: float = begin.elapsed_time(end)
    return found / times


def blocks() -> nn.Module:
    """Feed-forward blocks, as language models have them, in bf16."""
    made = [
        nn.Sequential(
            nn.Linear(SIDE, WIDE, bias=False), nn.GELU(), nn.Linear(WIDE, SIDE, bias=False)
        )
        for _ in range(LAYERS)
    ]
    return nn.Sequential(*made).to("cuda", torch.bfloat16).eval()


def main() -> None:
    """Print a line for each way."""
    torch.manual_seed(0)
    net = blocks()
    exact = copy.deepcopy(net).double()
    times = "".join(f"{f'ms for {rows} rows':>18}" for rows in ROWS)
    print(f"{'way':<26}{'error':>8}{'MB':>8}{times}")
    for name in sys.argv[1:] or WAYS:
        config = WAYS[name]
        before = torch.cuda.memory_allocated()
        made = copy.deepcopy(net)
        if config is not None:
            quantize_(made, config)
        size = (torch.cuda.memory_allocated() - before) / 1e6
        compiled = torch.compile(made, dynamic=False)
        took = []
        for rows in ROWS:
            x = torch.randn(rows, SIDE, device="cuda", dtype=torch.bfloat16)
            with torch.no_grad():
                found, wanted = compiled(x).double(), exact(x.double())
                error = ((found - wanted).norm() / wanted.norm()).item()
                took.append(milliseconds(compiled, x))
        print(f"{name:<26}{error:>8.2%}{size:>8.0f}" + "".join(f"{ms:>18.3f}" for ms in took))
        del made, compiled
        torch.compiler.reset()


if __name__ == "__main__":
    main()
