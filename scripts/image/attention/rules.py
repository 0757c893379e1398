"""Where FlashAttention-4 is faster than what torch takes by itself. Pure.

Measured on an H100 and an H200 with FlashAttention-4 4.0.0b36 and torch 2.11.0 (cuDNN 9.19):
docs/benchmarks/attention has every row, and a test compares these rules with it. Where nothing was
measured, torch chooses as before. `python /attention --grid` measures what a table here needs, and
benchmarks/attention/thresholds.py says what follows from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

FORWARD, BACKWARD = "forward", "backward"
# With torch.use_deterministic_algorithms, torch itself takes FlashAttention-2 instead of cuDNN.
USUAL, DETERMINISTIC = "usual", "deterministic"


@dataclass(frozen=True, slots=True)
class From:
    """From where on a step is faster. Below, starting the kernel costs more than it saves.

    `shortest` is the smaller number of queries and keys, `operations` those of the forward pass.
    """

    shortest: int
    operations: float


# By step and mode, and the size of a head. Others are torch's: with 256 the backward pass is slower
# than cuDNN's.
Table = Mapping[tuple[str, str], Mapping[int, From]]
HOPPER: Table = {
    (FORWARD, USUAL): dict.fromkeys((64, 96, 128), From(4096, 1e11)),
    # 64: 0.67 of torch's time at 4 x 32 x 2048 x 64, forward and backward.
    (FORWARD, DETERMINISTIC): {
        64: From(2048, 1.3e11), 96: From(4096, 1e11), 128: From(4096, 1e11),
    },
    # 64: 0.91 at 32 x 16 x 1024; 0.84 at 1 x 16 x 65536 queries x 1024 keys.
    # 96: 0.83 at 16 x 16 x 1280; 0.86 at 8 x 16 x 2048, causal.
    # 128: above 1 on an H200 at 1 x 32 x 4096, causal, which has 1.4e11 operations.
    (BACKWARD, USUAL): {
        64: From(1024, 1.3e11), 96: From(1280, 1e11), 128: From(1024, 3e11),
    },
    # 128: 0.33 at 1 x 16 x 16384; 0.58 at 4 x 32 (8 of keys) x 4096. 96 was not measured alone.
    (BACKWARD, DETERMINISTIC): {
        64: From(2048, 1.3e11), 96: From(1024, 3e11), 128: From(1024, 3e11),
    },
}  # fmt: skip

# Compute capability and cuDNN's version: the table, and the release of torch that was measured. A
# release joins with a line here and its report in docs/benchmarks/attention.
MEASURED: Mapping[tuple[tuple[int, int], str], tuple[Table, str]] = {
    ((9, 0), "9.19"): (HOPPER, "2.11.0"),
}


def operations(pairs: int, heads: int, width: int, *, causal: bool) -> float:
    """Floating-point operations of a forward pass; `pairs` of a query and a key, in all batches."""
    return 4.0 * pairs * heads * width / (2 if causal else 1)


def faster(
    step: str, on: tuple[tuple[int, int], str], *, deterministic: bool, width: int, shortest: int,
    operations: float,
) -> bool:  # fmt: skip
    """Whether FlashAttention-4 was faster at a step, FORWARD or BACKWARD, of such an attention.

    `on` is the compute capability and cuDNN's version, such as ((9, 0), "9.19"), `width` the size
    of a head, `shortest` the smaller number of queries and keys of a sequence, `operations` those
    of the forward pass.
    """
    table, _ = MEASURED.get(on, ({}, ""))
    least = table.get((step, DETERMINISTIC if deterministic else USUAL), {}).get(width)
    return bool(least and shortest >= least.shortest and operations >= least.operations)
