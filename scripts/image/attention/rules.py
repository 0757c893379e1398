"""Where FlashAttention-4 is faster than what torch takes by itself. Pure.

Measured with FlashAttention-4 4.0.0b36 on the GPUs and releases of torch whose reports are in
docs/benchmarks/attention; a test compares these rules with each row. Where nothing was measured,
torch chooses as before. `python /attention --measure grid` measures what a table here needs, and
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
# than cuDNN's. docs/benchmarks/attention/grid has both sides of each limit.
Table = Mapping[tuple[str, str], Mapping[int, From]]
HOPPER: Table = {
    # 128: 1.04 at 4 x 16 x 4096, causal, which has 2.7e11 operations.
    (FORWARD, USUAL): {
        64: From(4096, 2.7e11), 96: From(2048, 1.2e11), 128: From(4096, 5e11),
    },
    # 128: from 0.49 (1 x 16 x 16384) to 0.91, but for one row whose turns spread from 0.9 to 1.5.
    (FORWARD, DETERMINISTIC): {
        64: From(1024, 1.3e11), 96: From(1280, 7e10), 128: From(1024, 6e10),
    },
    # 128: above 1 on an H100 and an H200 at 1 x 32 x 4096, which has 2.7e11 operations.
    (BACKWARD, USUAL): {
        64: From(1024, 2.7e11), 96: From(1024, 2.5e11), 128: From(2048, 5e11),
    },
    # 128: 0.28 at 1 x 16 x 16384, 0.76 at most.
    (BACKWARD, DETERMINISTIC): {
        64: From(1024, 6e10), 96: From(1024, 2.5e10), 128: From(1024, 1.3e11),
    },
}  # fmt: skip

# Compute capability and cuDNN's version: the table, and the release of torch that was measured. A
# release joins with a line here and its report in docs/benchmarks/attention.
MEASURED: Mapping[tuple[tuple[int, int], str], tuple[Table, str]] = {
    ((9, 0), "9.19"): (HOPPER, "2.11.0"),
    ((9, 0), "9.24"): (HOPPER, "2.14.1"),
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
