"""Compile a function, and say whether the compiler's cache already had it."""

import torch
from torch._dynamo.utils import counters


@torch.compile
def scaled(values: torch.Tensor) -> torch.Tensor:
    return torch.sin(values) * 2 + 1


print(scaled(torch.ones(1000)).sum().item())
print("from the cache" if counters["inductor"]["fxgraph_cache_hit"] else "compiled")
