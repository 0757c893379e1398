"""The compiled extensions of variant `kernels` against torch's own operators, in turns, on one GPU.

    docker run --rm --gpus all -v "$PWD/benchmarks/attention:/attention:ro" \
        torch-cu130:sm90-kernels python /attention/extensions.py > result.json

flash-attn is compared with what scaled_dot_product_attention takes, each in the layout that it is
made for; causal-conv1d with torch's conv1d and silu. `error` is the largest difference from
float64, as a share of the largest right value. docs/extensions.md shows the results.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  its customary name
from timing import milliseconds

STOCK, OURS = "stock", "extension"
ROUNDS = 15
# Batch, heads, heads of key and value, length, width, type. The first one is the documents'.
SHAPES = (
    (16, 96, 96, 4096, 128, torch.float16),
    (4, 32, 32, 4096, 128, torch.float16),
    (4, 32, 8, 4096, 128, torch.bfloat16),
    (1, 32, 32, 16384, 128, torch.float16),
    (8, 32, 32, 2048, 128, torch.bfloat16),
    (16, 32, 32, 1024, 128, torch.bfloat16),
    (4, 32, 32, 8192, 64, torch.bfloat16),
    (8, 12, 12, 1024, 64, torch.float16),
)
CHANNELS = ((8, 4096, 2048), (2, 8192, 8192))  # batch, channels, length of a convolution
Call = Callable[[], object]


def in_turns(stock: Call, ours: Call) -> dict[str, float]:
    """Median milliseconds of both, and the median of their ratios."""
    calls, times = {STOCK: stock, OURS: ours}, {STOCK: list[float](), OURS: list[float]()}
    for call in calls.values():
        for _ in range(3):
            call()
    for number in range(ROUNDS):
        for name in (STOCK, OURS) if number % 2 else (OURS, STOCK):
            times[name].append(milliseconds(calls[name]))
    ratios = [b / a for a, b in zip(times[STOCK], times[OURS], strict=True)]
    return {
        **{name: statistics.median(found) for name, found in times.items()},
        "ratio": statistics.median(ratios),
    }


def leaves(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The same values, which collect gradients."""
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def passes(
    stock: Callable[..., torch.Tensor], ours: Callable[..., torch.Tensor],
    given: list[torch.Tensor], mine: list[torch.Tensor],
) -> dict[str, Any]:  # fmt: skip
    """Times of a forward pass, and of one with its gradients."""
    with torch.no_grad():
        forward = in_turns(lambda: stock(*given), lambda: ours(*mine))
    upstream = [torch.randn_like(stock(*given)), torch.randn_like(ours(*mine))]
    training = in_turns(
        lambda: torch.autograd.grad(stock(*given), given, upstream[0]),
        lambda: torch.autograd.grad(ours(*mine), mine, upstream[1]),
    )
    return {"forward": forward, "training": training}


def attention() -> Iterator[dict[str, Any]]:
    """flash-attn: batch, rows, heads, width; torch: batch, heads, rows, width."""
    from flash_attn import flash_attn_func

    for batch, heads, keys, length, width, dtype in SHAPES:
        for causal in (True, False):
            given = [
                torch.randn(batch, n, length, width, device="cuda", dtype=dtype, requires_grad=True)
                for n in (heads, keys, keys)
            ]
            found = passes(
                lambda *t, c=causal, g=keys != heads: F.scaled_dot_product_attention(
                    *t, is_causal=c, enable_gqa=g
                ),
                lambda *t, c=causal: flash_attn_func(*t, causal=c),
                given,
                leaves(*(t.transpose(1, 2).contiguous() for t in given)),
            )
            shape = [batch, heads, keys, length, width]
            yield {"shape": shape, "dtype": str(dtype)[6:], "causal": causal, **found}


def errors() -> Iterator[dict[str, Any]]:
    """Both against float64: output, and gradients of query, key and value."""
    from flash_attn import flash_attn_func

    torch.manual_seed(0)
    for dtype in (torch.float16, torch.bfloat16):
        given = [torch.randn(2, 16, 1024, 128, device="cuda").to(dtype) for _ in range(4)]
        stock, exact = leaves(*given[:3]), [t.double() for t in leaves(*given[:3])]
        mine = leaves(*(t.transpose(1, 2).contiguous() for t in given[:3]))
        scores = exact[0] @ exact[1].mT / 128**0.5
        hidden = scores.new_ones(1024, 1024).triu(1).bool()
        right = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ exact[2]
        outs = {
            STOCK: F.scaled_dot_product_attention(*stock, is_causal=True),
            OURS: flash_attn_func(*mine, causal=True).transpose(1, 2),
        }
        rights = (right, *torch.autograd.grad(right, exact, given[3].double()))
        row: dict[str, Any] = {"dtype": str(dtype)[6:]}
        for name, leaf in ((STOCK, stock), (OURS, mine)):
            grads = torch.autograd.grad(outs[name], leaf, given[3])
            turned = grads if name == STOCK else [grad.transpose(1, 2) for grad in grads]
            row[name] = [
                float((a.double() - b).abs().max().detach() / b.abs().max().detach())
                for a, b in zip((outs[name], *turned), rights, strict=True)
            ]
        yield row


def convolution() -> Iterator[dict[str, Any]]:
    """causal-conv1d of width 4 with silu."""
    from causal_conv1d import causal_conv1d_fn

    for batch, channels, length in CHANNELS:
        shapes = ((batch, channels, length), (channels, 4), (channels,))
        given = [
            torch.randn(s, device="cuda", dtype=torch.bfloat16, requires_grad=True) for s in shapes
        ]

        def stock(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return F.silu(F.conv1d(F.pad(x, (3, 0)), weight[:, None], bias, groups=len(weight)))

        found = passes(
            stock, lambda *t: causal_conv1d_fn(*t, activation="silu"), given, leaves(*given)
        )
        yield {"shape": [batch, channels, length], **found}


def main() -> None:
    """Print all as JSON."""
    names = ("torch", "flash-attn", "causal-conv1d", "mamba-ssm")
    result = {
        "gpu": torch.cuda.get_device_name(),
        "versions": {name: version(name) for name in names},
        "cudnn": torch.backends.cudnn.version(),
        "errors": list(errors()),
        "attention": list(attention()),
        "convolution": list(convolution()),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
