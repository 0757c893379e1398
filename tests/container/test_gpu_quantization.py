"""Weights of 8 and 4 bits on this GPU: torch's own kernels, and torchao's models."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.container.gpu import close, needs, taken

pytestmark = pytest.mark.gpu
WAYS = (
    "int8 weights",
    "int8 weights and inputs",
    "int4 weights",
    "fp8 weights",
    "fp8 weights and inputs",
)
GROUP = 128  # so many weights of a row have a scale and a zero point of their own


def four_bits(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The codes 0 to 15 of a weight of shape (n, k), and scales and least values, (n, k / GROUP)."""
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    least, largest = groups.amin(-1), groups.amax(-1)
    scales = ((largest - least) / 15).bfloat16().to(weight.dtype)
    codes = ((groups - least[..., None]) / scales[..., None]).round().clamp(0, 15)
    return codes.reshape(weight.shape).int(), scales, least


def test_int4_product() -> None:
    """A kernel of torch for weights of four bits, against the product with what the codes stand for.

    A code stands for (code - 8) * scale + zero. The product is within 4 bits' rounding of that with
    the weights themselves.
    """
    needs(8, 0, "the product with weights of four bits")
    weight = torch.randn(512, 1024, device="cuda", dtype=torch.float64)
    x = torch.randn(48, 1024, device="cuda").bfloat16()
    codes, scales, least = four_bits(weight)
    zeros = (least + 8 * scales).bfloat16().to(weight.dtype)
    pairs = torch.stack([scales, zeros], dim=-1).bfloat16().transpose(0, 1).contiguous()
    packed = torch._convert_weight_to_int4pack(
        (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8).contiguous(), 8
    )
    found = torch._weight_int4pack_mm(x, packed, GROUP, pairs)
    stored = codes.reshape(512, -1, GROUP) - 8
    stood_for = (stored * scales[..., None] + zeros[..., None]).reshape(weight.shape)
    close(found, x.double() @ stood_for.t(), 2e-2)
    close(found, x.double() @ weight.t(), 1.5e-1)
    assert packed.numel() * packed.element_size() * 2 == weight.numel()


@dataclass(frozen=True)
class Way:
    """A setting of torchao, its limit of error, and the least and most bytes that a weight takes."""

    setting: Any
    limit: float
    least: float
    most: float


def way(quantization: Any, name: str) -> Way:
    """A way that torchao quantizes in.

    Four bits are packed for torch's own kernel. The other ways of packing that torchao knows need
    kernels of another package, which no image has. Beside the weights are a scale of two or four
    bytes for a row of int8 or fp8, and a scale and a zero point of two bytes each for a group of
    int4. fp8 has three bits after the point: an error of up to 1/16 a value.
    """
    plain: dict[str, Any] = {"set_inductor_config": False}
    if name == "int8 weights":
        return Way(quantization.Int8WeightOnlyConfig(version=2, **plain), 2e-2, 1, 1 + 8 / 1024)
    if name == "int8 weights and inputs":
        setting = quantization.Int8DynamicActivationInt8WeightConfig(**plain)
        return Way(setting, 4e-2, 1, 1 + 8 / 1024)
    if name == "fp8 weights":
        return Way(quantization.Float8WeightOnlyConfig(**plain), 8e-2, 1, 1 + 8 / 1024)
    if name == "fp8 weights and inputs":
        setting = quantization.Float8DynamicActivationFloat8WeightConfig(
            granularity=quantization.PerRow(), **plain
        )
        return Way(setting, 1e-1, 1, 1 + 8 / 1024)
    if metadata.version("torchao") == "0.16.0":  # the scales that it chooses have twice the error
        plain["int4_choose_qparams_algorithm"] = "hqq"
    setting = quantization.Int4WeightOnlyConfig(
        group_size=GROUP, int4_packing_format="tile_packed_to_4d", **plain
    )
    return Way(setting, 1.5e-1, 0.5, 0.5 + 4 / GROUP)


@pytest.mark.parametrize("name", WAYS)
def test_torchao_quantizes_a_model(name: str) -> None:
    """The result is near that of the model in float64, and the weights take so many bits."""
    quantization = pytest.importorskip("torchao.quantization", reason="no torchao here")
    needs(8, 9 if name.startswith("fp8") else 0, "torchao's kernels")
    chosen = way(quantization, name)
    widths = (1024, 2048, 1024)
    layers = [torch.nn.Linear(a, b, bias=False) for a, b in pairwise(widths)]
    net = torch.nn.Sequential(layers[0], torch.nn.GELU(), layers[1]).to("cuda", torch.bfloat16)
    exact = copy.deepcopy(net).double()
    x = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)

    def quantized() -> torch.nn.Module:
        made = copy.deepcopy(net)
        quantization.quantize_(made, chosen.setting)
        return made

    quantized()  # what the kernels keep for themselves is there from now on
    taken_bytes, _ = taken(quantized)
    with torch.no_grad():
        found = quantized()(x)
        close(found, exact(x.double()), chosen.limit)
        assert not torch.equal(found, net(x))
    count = sum(layer.weight.numel() for layer in layers)
    assert count * chosen.least <= taken_bytes <= count * chosen.most
