"""The number formats of the matrix units: TF32, FP8, and block-scaled ones if the GPU has them."""

from __future__ import annotations

import pytest
import torch

from tests.container.gpu import close, needs
from tests.container.processes import child, environment

pytestmark = pytest.mark.gpu

# Largest relative error in TF32: half a unit in the last of ten mantissa bits for each factor,
# and the rounding of sums.
TF32 = 3e-3


def products(precision: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A product of float32 matrices, 512 x 512, at a precision, and the same in float64."""
    torch.set_float32_matmul_precision(precision)
    a, b = (torch.randn(512, 512, device="cuda") for _ in range(2))
    return a @ b, a.double() @ b.double()


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


def test_tf32_is_used_when_asked_for() -> None:
    """The error shows it: larger than float32's, and not larger than TF32's."""
    needs(8, 0, "TF32")
    assert error(*products("highest")) < 1e-5
    assert 1e-5 < error(*products("high")) < TF32


ROUNDING = """
import sys, torch
exec(sys.argv[1])
a, b = (torch.randn(512, 512, device="cuda") for _ in range(2))
wanted = a.double() @ b.double()
print(float(((a @ b) - wanted).abs().max() / wanted.abs().max()))
"""
TORCHS, IMAGES = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_IMAGE_TF32"


def rounding(setter: str, **settings: str) -> float:
    """The error of a product in a new process, after a setter."""
    return float(child(ROUNDING, setter, env=environment(settings, (TORCHS, IMAGES))))


@pytest.mark.parametrize("name", [TORCHS, IMAGES])
@pytest.mark.parametrize(("value", "on"), [("1", True), ("0", False)], ids=["on", "off"])
def test_tf32_by_the_profiles_setting(name: str, value: str, on: bool) -> None:
    """And by torch's own variable, which counts more than the profile's."""
    needs(8, 0, "TF32")
    if name == IMAGES:
        pytest.importorskip("_torch_images.after_torch", reason="no image's torch")
    assert (rounding("", **{IMAGES: "1", name: value}) > 1e-5) == on


FULL = (
    "torch.backends.fp32_precision = 'ieee'",
    "torch.backends.cudnn.fp32_precision = 'ieee'",
    "torch.backends.cuda.matmul.fp32_precision = 'ieee'",
    "torch.backends.cuda.matmul.allow_tf32 = False",
    "torch.set_float32_matmul_precision('highest')",
)


@pytest.mark.parametrize("setter", FULL)
def test_full_float32_when_asked(setter: str) -> None:
    """Whatever the profile prefers, and torch.compile compiled before."""
    needs(8, 0, "TF32")
    if "fp32_precision" in setter and not hasattr(torch._C, "_set_fp32_precision_setter"):
        pytest.skip("this release has no such setter")
    compiled = "torch.compile(lambda x: x + 1)(torch.ones(2, device='cuda'))"
    assert rounding(f"{compiled}\n{setter}", **{IMAGES: "1"}) < 1e-5
    assert (
        rounding(
            setter.replace("ieee", "tf32").replace("False", "True").replace("highest", "high"),
            **{IMAGES: "0"},
        )
        > 1e-5
    )


FLAG = """
import torch
a, b = (torch.randn(512, 512, device="cuda") for _ in range(2))
wanted = a.double() @ b.double()
for on in (False, True):
    torch.backends.cuda.matmul.allow_tf32 = on
    assert torch.backends.cuda.matmul.allow_tf32 is on
    print(float(((a @ b) - wanted).abs().max() / wanted.abs().max()))
"""


def test_tf32_by_the_older_flag() -> None:
    """`torch.backends.cuda.matmul.allow_tf32`, in a process that no other setting has reached."""
    needs(8, 0, "TF32")
    env = environment({}, [TORCHS, IMAGES])
    off, on = map(float, child(FLAG, env=env).splitlines())
    assert off < 1e-5 < on < TF32


def test_tf32_convolution() -> None:
    """By default, cuDNN uses TF32."""
    needs(8, 0, "TF32")
    x = torch.randn(8, 64, 32, 32, device="cuda")
    weight = torch.randn(64, 64, 3, 3, device="cuda")
    wanted = torch.nn.functional.conv2d(x.double(), weight.double(), padding=1)
    close(torch.nn.functional.conv2d(x, weight, padding=1), wanted, TF32)


@pytest.mark.parametrize("rowwise", [False, True], ids=["tensor", "rows"])
def test_fp8_scaled_product(rowwise: bool) -> None:
    needs(8, 9, "FP8")
    if rowwise:
        needs(9, 0, "FP8 with a scale for each row")
    largest = torch.finfo(torch.float8_e4m3fn).max
    a, b = (torch.randn(256, 512, device="cuda") for _ in range(2))
    scales = [
        t.abs().amax(dim=1, keepdim=True) / largest if rowwise else t.abs().amax() / largest
        for t in (a, b)
    ]
    x, y = (
        (t / s).clamp(-largest, largest).to(torch.float8_e4m3fn)
        for t, s in zip((a, b), scales, strict=True)
    )
    found = torch._scaled_mm(
        x, y.t(), scale_a=scales[0], scale_b=scales[1].t() if rowwise else scales[1],
        out_dtype=torch.bfloat16,
    )  # fmt: skip
    # Near the product of the values rounded to FP8, and less near that of the original values.
    rounded = [t.double() * s.double() for t, s in zip((x, y), scales, strict=True)]
    close(found, rounded[0] @ rounded[1].t(), 1e-2)
    close(found, a.double() @ b.double().t(), 6e-2)


def test_fp8_with_more_exponent() -> None:
    """E5M2, which gradients use, times E4M3, which weights use."""
    needs(8, 9, "FP8")
    types = (torch.float8_e5m2, torch.float8_e4m3fn)
    originals = [torch.randn(256, 512, device="cuda") for _ in types]
    scales = [t.abs().amax() / torch.finfo(d).max for t, d in zip(originals, types, strict=True)]
    x, y = ((t / s).to(d) for t, s, d in zip(originals, scales, types, strict=True))
    found = torch._scaled_mm(
        x, y.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16
    )
    rounded = [t.double() * s.double() for t, s in zip((x, y), scales, strict=True)]
    close(found, rounded[0] @ rounded[1].t(), 1e-2)
    close(found, originals[0].double() @ originals[1].double().t(), 1e-1)


def swizzled(scales: torch.Tensor) -> torch.Tensor:
    """Scales, in tiles of 128 rows by 4 blocks, in the order that the matrix units read them.

    `scales` has the shape (rows, blocks): multiples of 128 and of 4. The result is flat.

    https://docs.nvidia.com/cuda/cublas/#d-block-scaling-factors-layout
    """
    rows, columns = scales.shape
    tiles = scales.view(rows // 128, 128, columns // 4, 4).permute(0, 2, 1, 3)
    return tiles.reshape(-1, 4, 32, 4).transpose(1, 2).reshape(-1)


def test_mxfp8_scaled_product() -> None:
    """Each 32 values have a scale, which is a power of two."""
    needs(10, 0, "MXFP8")
    x, y = (torch.randn(128, 256, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    exponents = [torch.randint(-2, 3, (128, 8), device="cuda") for _ in range(2)]
    scales = [torch.exp2(e.float()).to(torch.float8_e8m0fnu) for e in exponents]
    found = torch._scaled_mm(
        x, y.t(), scale_a=swizzled(scales[0]), scale_b=swizzled(scales[1]), out_dtype=torch.bfloat16
    )
    exact = [
        t.double() * torch.exp2(e.double()).repeat_interleave(32, dim=1)
        for t, e in zip((x, y), exponents, strict=True)
    ]
    close(found, exact[0] @ exact[1].t(), 1e-2)


def test_nvfp4_scaled_product() -> None:
    """A value has four bits, so a byte holds two. Each 16 values have a scale in FP8."""
    needs(10, 0, "NVFP4")
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64, device="cuda")
    codes = [torch.randint(0, 16, (128, 256), device="cuda", dtype=torch.uint8) for _ in range(2)]
    packed = [(c[:, ::2] | (c[:, 1::2] << 4)).view(torch.float4_e2m1fn_x2) for c in codes]
    scales = [torch.rand(128, 16, device="cuda").add(0.5).to(torch.float8_e4m3fn) for _ in range(2)]
    found = torch._scaled_mm(
        packed[0], packed[1].t(), scale_a=swizzled(scales[0]), scale_b=swizzled(scales[1]),
        out_dtype=torch.bfloat16,
    )  # fmt: skip
    exact = [
        values[(c & 7).long()] * torch.where(c > 7, -1.0, 1.0) * s.double().repeat_interleave(16, 1)
        for c, s in zip(codes, scales, strict=True)
    ]
    close(found, exact[0] @ exact[1].t(), 1e-2)
