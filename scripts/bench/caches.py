"""Compiling with an empty cache, and its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def fresh_cache() -> Any:
    """A context with an empty cache of compiled code."""
    from torch._inductor import utils

    make = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache  # the older name
    return make()


def first(call: Callable[[], object]) -> dict[str, float]:
    """Make a compiled function's first call from an empty cache: a figure of its seconds."""
    with fresh_cache():
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return {"compile, s": round(time.perf_counter() - start, 2)}
