"""Where FlashAttention-4 is faster than what torch takes by itself. Pure.

Measured with FlashAttention-4 4.0.0b36 on the GPUs and releases of torch whose reports are in
docs/benchmarks/attention; a test compares these rules with each row. Where nothing was measured,
torch chooses as before. `python /attention --measure grid` measures what a table here needs, and
benchmarks/attention/thresholds.py says what follows from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FORWARD, BACKWARD = "forward", "backward"
# With torch.use_deterministic_algorithms, torch itself takes FlashAttention-2 instead of cuDNN.
# While a CUDA graph is captured, the time that the processor needs for a call does not count.
USUAL, DETERMINISTIC, CAPTURED = "usual", "deterministic", "captured"


@dataclass(frozen=True, slots=True)
class Shape:
    """What rules go by.

    `width` is the size of a head, `shortest` the smaller number of queries and keys of a sequence,
    `operations` those of the forward pass.
    """

    width: int
    causal: bool
    shortest: int
    operations: float


# By step and mode, then by the size of a head and whether the mask is causal: taken is what has at
# least so many queries and keys, and at least so many operations, as one of the pairs says. Below,
# starting the kernel costs more than it saves. Other sizes are torch's: with 256 the backward pass
# is slower than cuDNN's. docs/benchmarks/attention/grid has both sides of each limit.
Limits = Mapping[tuple[int, bool], Sequence[tuple[int, float]]]
Table = Mapping[tuple[str, str], Limits]


def _both(limits: Mapping[int, tuple[int, float]]) -> Limits:
    """The same limits with a causal mask and without."""
    return {(width, causal): [at] for width, at in limits.items() for causal in (False, True)}


CUDNN_9_19: Table = {
    # 128: 1.04 at 4 x 16 x 4096, causal, which has 2.7e11 operations.
    (FORWARD, USUAL): _both({64: (4096, 2.7e11), 96: (2048, 1.2e11), 128: (4096, 5e11)}),
    # 128: from 0.49 (1 x 16 x 16384) to 0.91, but for one row whose turns spread from 0.9 to 1.5.
    (FORWARD, DETERMINISTIC): _both({64: (1024, 1.3e11), 96: (1280, 7e10), 128: (1024, 6e10)}),
    # 128: above 1 on an H100 and an H200 at 1 x 32 x 4096, which has 2.7e11 operations.
    (BACKWARD, USUAL): _both({64: (1024, 2.7e11), 96: (1024, 2.5e11), 128: (2048, 5e11)}),
    # 128: 0.28 at 1 x 16 x 16384, 0.76 at most.
    (BACKWARD, DETERMINISTIC): _both({64: (1024, 6e10), 96: (1024, 2.5e10), 128: (1024, 1.3e11)}),
}

# What benchmarks/attention/thresholds.py prints for the grids and the report of torch 2.14.1.
CUDNN_9_24: Table = {
    (FORWARD, USUAL): {
        (64, False): [(2048, 2.74e11)],  # 0.97 at most
        (64, True): [(4096, 2.74e11)],  # 0.98 at most
        (96, False): [(1280, 1.4e11)],  # 0.99 at most
        (96, True): [(2048, 6.44e10), (4096, 5.15e10)],  # 0.98 at most
        (128, False): [(4096, 5.49e11)],  # 0.98 at most
        (128, True): [(2048, 5.66e11), (4096, 6.87e10)],  # 0.99 at most
    },
    (FORWARD, CAPTURED): {
        (64, False): [(1280, 5.57e11), (2048, 1.37e11), (4096, 6.87e10)],  # 0.99 at most
        (64, True): [(4096, 3.43e10)],  # 0.94 at most
        (96, False): [(1024, 5.6e11), (1280, 7.04e10)],  # 0.99 at most
        (96, True): [(2048, 3.86e10)],  # 0.94 at most
        (128, False): [(1280, 5.63e11), (2048, 2.74e11), (4096, 1.37e11)],  # 0.99 at most
        (128, True): [(2048, 5.66e11), (4096, 6.87e10)],  # 0.97 at most
    },
    (FORWARD, DETERMINISTIC): {
        (64, False): [(1024, 6.87e10)],  # 0.94 at most
        (64, True): [(1024, 1.39e11), (1280, 7.04e10), (2048, 3.43e10)],  # 0.90 at most
        (96, False): [(1024, 7.08e10)],  # 0.91 at most
        (96, True): [(1024, 1.38e11), (1280, 7.04e10), (2048, 3.86e10)],  # 0.96 at most
        (128, False): [(1024, 6.87e10)],  # 0.93 at most
        (128, True): [(1024, 6.87e10), (2048, 3.43e10)],  # 0.85 at most
    },
    (BACKWARD, USUAL): {
        (64, False): [(1024, 5.58e11)],  # 0.93 at most
        (64, True): [(1024, 2.79e11)],  # 0.90 at most
        (96, False): [(1024, 2.77e11), (1280, 1.61e11), (2048, 1.28e11)],  # 0.97 at most
        (96, True): [(1024, 1.38e11), (4096, 1.03e11)],  # 0.95 at most
        (128, False): [(4096, 5.49e11)],  # 0.99 at most
        (128, True): [(1024, 5.58e11)],  # 0.97 at most
    },
    (BACKWARD, CAPTURED): {
        (64, False): [(1024, 3.43e10)],  # 0.85 at most
        (64, True): [(1024, 3.43e10)],  # 0.80 at most
        (96, False): [(1024, 3.22e10), (2048, 2.57e10)],  # 0.80 at most
        (96, True): [(1024, 3.54e10)],  # 0.77 at most
        (128, False): [(1024, 3.43e10)],  # 0.91 at most
        (128, True): [(1024, 3.43e10)],  # 0.88 at most
    },
    (BACKWARD, DETERMINISTIC): {
        (64, False): [(1024, 3.43e10)],  # 0.90 at most
        (64, True): [(1024, 3.43e10)],  # 0.94 at most
        (96, False): [(1024, 3.22e10), (2048, 2.57e10)],  # 0.94 at most
        (96, True): [(1024, 3.54e10)],  # 0.91 at most
        (128, False): [(1024, 3.43e10)],  # 0.90 at most
        (128, True): [(1024, 3.43e10)],  # 0.94 at most
    },
}

# Compute capability and cuDNN's version: the table, and the release of torch that was measured. A
# release joins with a line here and its report in docs/benchmarks/attention.
MEASURED: Mapping[tuple[tuple[int, int], str], tuple[Table, str]] = {
    ((9, 0), "9.19"): (CUDNN_9_19, "2.11.0"),
    ((9, 0), "9.24"): (CUDNN_9_24, "2.14.1"),
}


def operations(pairs: int, heads: int, width: int, *, causal: bool) -> float:
    """Floating-point operations of a forward pass; `pairs` of a query and a key, in all batches."""
    return 4.0 * pairs * heads * width / (2 if causal else 1)


def faster(step: str, mode: str, on: tuple[tuple[int, int], str], shape: Shape) -> bool:
    """Whether FlashAttention-4 was faster at a step, FORWARD or BACKWARD, of such an attention.

    `on` is the compute capability and cuDNN's version, such as ((9, 0), "9.19"). Where graphs were
    not measured, they are like other calls.
    """
    table, _ = MEASURED.get(on, ({}, ""))
    limits = table.get((step, mode)) or (table.get((step, USUAL)) if mode == CAPTURED else None)
    return any(
        shape.shortest >= shortest and shape.operations >= operations
        for shortest, operations in (limits or {}).get((shape.width, shape.causal), ())
    )
