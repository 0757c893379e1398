"""torch.compile works: the image has the compiler, headers and libraries that it needs."""

from __future__ import annotations

import torch
import torch._inductor.metrics


def test_compiled_function_equals_eager() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.gelu(x @ y) + x.sin()).softmax(-1)

    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, 64, generator=generator) for _ in range(2))
    torch._inductor.metrics.reset()
    found = torch.compile(function, fullgraph=True)(x, y)
    assert torch._inductor.metrics.generated_kernel_count > 0  # it did not fall back to eager
    torch.testing.assert_close(found, function(x, y), rtol=1e-4, atol=1e-5)


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
