"""Operations of the benchmark's cases, counted from shapes, against counting each one."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scripts import load

FILE = "scripts/bench/counting.py"


@pytest.fixture(scope="module")
def counting() -> ModuleType:
    """The module, which lies beside no package."""
    return load(FILE)


def by_hand(size: int, kernel: int, stride: int, padding: int) -> int:
    """Walk over the padded values, and count the multiplications by real ones of two axes."""
    real = [[False] * padding + [True] * size + [False] * padding] * 2
    places = range(0, size + 2 * padding - kernel + 1, stride)
    return sum(
        real[0][y + i] and real[1][x + j]
        for y in places
        for x in places
        for i in range(kernel)
        for j in range(kernel)
    )


@settings(max_examples=60)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(0, 4))
def test_taps_are_those_on_real_values(
    counting: ModuleType, size: int, kernel: int, stride: int, padding: int
) -> None:
    if size + 2 * padding < kernel:
        return
    assert counting.taps(size, kernel, stride, padding) ** 2 == by_hand(
        size, kernel, stride, padding
    )


def test_attention(counting: ModuleType) -> None:
    """16x96x4096x128, causal: 12.27 ms are 537.7 TFLOPS."""
    shape = (16, 96, 4096, 128)
    forward = counting.attention(*shape, causal=True)
    assert forward / 12.27e-3 / 1e12 == pytest.approx(537.7, abs=0.1)
    assert counting.attention(*shape, causal=False) == 2 * forward
    assert counting.attention(*shape, causal=True, backward=True) == 3.5 * forward
