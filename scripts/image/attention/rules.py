"""Where FlashAttention-4 is faster than what torch takes by itself. Pure.

Measured on an H100 and an H200 with FlashAttention-4 4.0.0b36 and torch 2.11.0 (cuDNN 9.19):
docs/benchmarks/attention has every row, and a test compares these rules with it. Where nothing was
measured, torch chooses as before.
"""

# Compute capability, and cuDNN's version, which torch takes otherwise: Hopper, and torch 2.11.0.
MEASURED = (((9, 0), "9.19"),)
WIDTHS = (64, 96, 128)  # values of a head. With 256 the backward pass is slower than cuDNN's.
FORWARD, BACKWARD = "forward", "backward"
# The fewest queries and keys of a sequence, and the fewest operations of a forward pass, by which a
# step is faster. Below, starting the kernel costs more than it saves.
SHORTEST = {FORWARD: 4096, BACKWARD: 1024}
LEAST = {FORWARD: 1e11, BACKWARD: 3e11}


def operations(pairs: int, heads: int, width: int, *, causal: bool) -> float:
    """Floating-point operations of a forward pass; `pairs` of a query and a key, in all batches."""
    return 4.0 * pairs * heads * width / (2 if causal else 1)


def faster(
    step: str,
    capability: tuple[int, int],
    cudnn: str,
    *,
    width: int,
    shortest: int,
    operations: float,
) -> bool:
    """Whether FlashAttention-4 was faster at a step, FORWARD or BACKWARD, of such an attention.

    `cudnn` is the version of cuDNN, such as "9.19", `width` the size of a head, `shortest` the
    smaller number of queries and keys of a sequence, `operations` those of the forward pass.
    """
    return (
        (capability, cudnn) in MEASURED
        and width in WIDTHS
        and shortest >= SHORTEST[step]
        and operations >= LEAST[step]
    )
