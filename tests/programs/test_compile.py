"""torch.compile with all of Inductor's defaults: precompiled headers, and its own processes.

tests/container/test_compile.py compiles in each image, without both: they take most of the time.
"""

from __future__ import annotations

import torch


def test_compiled_gradients_equal_eager() -> None:
    generator = torch.Generator().manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    x = torch.randn(8, 16, generator=generator)
    model(x).square().sum().backward()
    eager = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    torch.compile(model)(x).square().sum().backward()
    compiled = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(eager) == len(compiled) == 4
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
