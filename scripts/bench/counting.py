"""The number of operations of a call, from its shapes alone. Pure: no torch."""

from __future__ import annotations

# ResNet-50, https://arxiv.org/abs/1512.03385, table 1: blocks of each stage.
BLOCKS = (3, 4, 6, 3)
CLASSES = 1000


def taps(size: int, kernel: int, stride: int = 1, padding: int = 0) -> int:
    """The taps of a kernel on real values along one axis, summed over all output positions.

    Taps on padding multiply by zero, which kernels may skip; they are not counted.
    """
    places = (size + 2 * padding - kernel) // stride + 1
    found = 0
    for place in range(places):
        first = place * stride - padding
        found += max(0, min(first + kernel, size) - max(first, 0))
    return found


def conv2d(
    batch: int, inside: int, outside: int, side: int, kernel: int,
    *, stride: int = 1, padding: int = 0, groups: int = 1,
) -> int:  # fmt: skip
    """Operations (a multiplication and an addition are two) of a convolution of square images."""
    return 2 * batch * outside * (inside // groups) * taps(side, kernel, stride, padding) ** 2


def resnet50(side: int = 224) -> int:
    """Operations of ResNet-50 for one image: its convolutions and its last layer."""
    found = conv2d(1, 3, 64, side, 7, stride=2, padding=3)
    side = -(-side // 4)  # the first convolution and the pooling halve it, each
    inside = 64
    for stage, count in enumerate(BLOCKS):
        width = 64 * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            found += conv2d(1, inside, width, side, 1)
            found += conv2d(1, width, width, side, 3, stride=stride, padding=1)
            if stride != 1 or inside != 4 * width:
                found += conv2d(1, inside, 4 * width, side, 1, stride=stride)
            side = -(-side // stride)
            found += conv2d(1, width, 4 * width, side, 1)
            inside = 4 * width
    return found + 2 * inside * CLASSES


def attention(
    batch: int, heads: int, length: int, dim: int, *, causal: bool, backward: bool = False
) -> float:
    """Operations of attention: two products forward, five more backward.

    A causal mask leaves half of them. `heads` are those of the queries: groups of them share keys,
    but each computes its own products.
    """
    forward = 4 * batch * heads * length**2 * dim / (2 if causal else 1)
    return forward * (1 + 2.5) if backward else forward


def encoder(batch: int, length: int, width: int, wide: int, layers: int) -> int:
    """Operations of a transformer's encoder, forward; `wide` is the width of its feed-forward."""
    n = batch * length
    return layers * (8 * n * width**2 + 4 * n * length * width + 4 * n * width * wide)
