"""What is measured: each row of the documents' tables, with its operations and bytes counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812  its customary name
from measure import Call
from models import encoder, resnet50
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

# Precisions by name: how tensors are held, and whether products of float32 may use TF32.
DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}
BACKENDS = {
    "default": None,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
MB = 2**20
GB = 2**30
RESNET_FLOPS = 2 * 4.089e9  # multiply and add; an image of 224x224


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row: what a call does, and how to make it.

    `make(sets)` gives a call that takes a set of inputs by number. `size` is the bytes of one set,
    `flops` and `moved` what a call computes and moves at least, `items` how many things (`unit`) it
    deals with. `needs` is a compute capability, `gpus` how many GPUs. `attention` rows also note
    which kernel ran.
    """

    table: str
    name: str
    precision: str
    make: Callable[[int], Call]
    size: int = 0
    flops: float = 0
    moved: float = 0
    items: int = 0
    unit: str = ""
    needs: tuple[int, int] = (0, 0)
    gpus: int = 1
    attention: bool = False
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Names it in every report."""
        return f"{self.table}/{self.name}/{self.precision}"


def random(precision: str, *shape: int) -> torch.Tensor:
    """Random values of size one on the GPU."""
    values = torch.randn(*shape, device="cuda")
    return values.to(DTYPES[precision])


def width(precision: str) -> int:
    """Bytes of one value."""
    found: int = DTYPES[precision].itemsize
    return found


def rotating(make: Callable[[], object], call: Callable[..., object]) -> Callable[[int], Call]:
    """A case's `make` from one that makes a set of inputs, and what is called with a set."""

    def all_sets(sets: int) -> Call:
        inputs = [make() for _ in range(sets)]
        return lambda i: call(*inputs[i])  # type: ignore[misc]

    return all_sets


def gemm(table: str, n: int, precision: str) -> Case:
    """A square product; FP8 with one scale for each factor."""

    def factors() -> tuple[torch.Tensor, ...]:
        return random(precision, n, n), random(precision, n, n)

    def scaled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        one = torch.ones((), device="cuda")
        return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return Case(
        table=table,
        name=f"{n}x{n}",
        precision=precision,
        make=rotating(factors, scaled if precision == "fp8" else torch.matmul),
        size=2 * n * n * width(precision),
        flops=2 * n**3,
        needs=(8, 9) if precision == "fp8" else (8, 0) if precision == "tf32" else (0, 0),
    )


def batched(precision: str) -> Case:
    """32 products of 1024x1024."""
    shape = (32, 1024, 1024)
    return Case(
        table="batched gemm",
        name="32x1024x1024",
        precision=precision,
        make=rotating(lambda: (random(precision, *shape), random(precision, *shape)), torch.bmm),
        size=2 * 32 * 1024 * 1024 * width(precision),
        flops=32 * 2 * 1024**3,
        needs=(8, 0) if precision == "tf32" else (0, 0),
    )


def convolution(
    batch: int, inside: int, outside: int, side: int, k: int, *, groups: int = 1
) -> Case:
    """A convolution with stride 1 that keeps the sides."""

    def make() -> tuple[torch.Tensor, ...]:
        x = random("fp16", batch, inside, side, side)
        return x, random("fp16", outside, inside // groups, k, k)

    values = batch * side * side
    name = f"B={batch}, {inside}->{outside}, {side}x{side}, k={k}"
    return Case(
        table="depthwise conv2d" if groups > 1 else "conv2d",
        name=f"B={batch}, C={inside}, {side}x{side}" if groups > 1 else name,
        precision="fp16",
        make=rotating(make, lambda x, w: F.conv2d(x, w, padding=k // 2, groups=groups)),
        size=values * inside * 2,
        flops=2 * values * outside * inside // groups * k * k,
        moved=2 * values * (inside + outside) if groups > 1 else 0,
    )


def attention(
    batch: int, heads: int, length: int, dim: int, precision: str,
    *, causal: bool = False, backend: str = "default", table: str = "sdpa",
) -> Case:  # fmt: skip
    """Attention, forward. A causal mask leaves half of the operations."""

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        chosen = BACKENDS[backend]
        if chosen is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        with sdpa_kernel(chosen):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    shape = (batch, heads, length, dim)
    kind = ", causal" if causal else ""
    by = f", {backend}" if table != "sdpa" else ""
    return Case(
        table=table,
        name=f"B={batch}, H={heads}, S={length}, D={dim}{kind}{by}",
        precision=precision,
        make=rotating(lambda: tuple(random(precision, *shape) for _ in range(3)), call),
        size=3 * batch * heads * length * dim * 2,
        flops=4 * batch * heads * length**2 * dim / (2 if causal else 1),
        needs=(8, 0),
        attention=True,
    )


def linear(batch: int, length: int, inside: int, outside: int, precision: str) -> Case:
    """A layer with bias. Its weights rotate, too: a model has more than one such layer."""

    def make() -> tuple[torch.Tensor, ...]:
        weight, bias = random(precision, outside, inside), random(precision, outside)
        return random(precision, batch, length, inside), weight, bias

    values = batch * length * (inside + outside) + inside * outside
    return Case(
        table="linear",
        name=f"[{batch},{length},{inside}]->[{batch},{length},{outside}]",
        precision=precision,
        make=rotating(make, F.linear),
        size=(batch * length * inside + inside * outside) * 2,
        flops=2 * batch * length * inside * outside,
        moved=values * 2 if length == 1 else 0,
    )


def pointwise(table: str, *shape: int) -> Case:
    """LayerNorm or softmax over the last dimension: each value is read once and written once."""
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "layernorm": lambda x: F.layer_norm(x, shape[-1:]),
        "softmax": lambda x: x.softmax(-1),
    }
    size = 2 * math.prod(shape)
    return Case(
        table=table,
        name=str(list(shape)),
        precision="fp16",
        make=rotating(lambda: (random("fp16", *shape),), calls[table]),
        size=size,
        moved=2 * size,
    )


def model(
    table: str, name: str, precision: str, make: Callable[[], nn.Module], shape: tuple[int, ...],
    *, flops: float, unit: str, mode: str = "",
) -> Case:  # fmt: skip
    """Inference of a model, compiled in a mode or not; its weights are the same for every call."""

    def call(_: int) -> Call:
        with torch.device("cuda"):
            net = make()
        net = net.to(DTYPES[precision])
        ready = torch.compile(net, mode=mode) if mode else net
        x = random(precision, *shape)

        def run(_: int) -> object:
            with torch.inference_mode():
                return ready(x)

        return run

    return Case(
        table=table,
        name=name,
        precision=precision,
        make=call,
        flops=flops,
        items=shape[0],
        unit=unit,
    )


def resnet(batch: int, precision: str, table: str = "resnet-50", mode: str = "") -> Case:
    """ResNet-50."""
    name = f"B={batch}" + (f", {mode}" if mode else ", eager" if table != "resnet-50" else "")
    return model(
        table, name, precision, resnet50, (batch, 3, 224, 224),
        flops=batch * RESNET_FLOPS, unit="img", mode=mode,
    )  # fmt: skip


def transformer(batch: int, length: int, precision: str) -> Case:
    """Six layers, 1024 wide, 16 heads; feed-forward 2048, PyTorch's default."""
    n, d, ff = batch * length, 1024, 2048
    flops = 6 * (8 * n * d * d + 4 * n * length * d + 4 * n * d * ff)
    return model(
        "transformer encoder", f"B={batch}, S={length}", precision, encoder, (batch, length, d),
        flops=flops, unit="seq",
    )  # fmt: skip


def addition() -> Case:
    """The sum of two vectors of 512 MiB: two reads and a write."""

    def make(_: int) -> Call:
        a, b, out = (random("fp16", 512 * MB // 2) for _ in range(3))
        return lambda _: torch.add(a, b, out=out)

    name = "vector add, 512 MiB"
    return Case(
        table="memory bandwidth", name=name, precision="fp16", make=make, moved=3 * 512 * MB
    )


def copying() -> Case:
    """A copy of 2 GiB on the device: a read and a write."""

    def make(_: int) -> Call:
        here, there = (torch.empty(2 * GB, device="cuda", dtype=torch.uint8) for _ in range(2))
        here.random_()
        return lambda _: there.copy_(here)

    return Case(
        table="memory bandwidth", name="copy, 2 GiB", precision="bytes", make=make, moved=4 * GB
    )


def transfer(size: int, *, both: bool = False) -> Case:
    """From GPU 0 to GPU 1, or both ways at once; bytes count once for each way."""

    def make(_: int) -> Call:
        pairs = [
            [torch.empty(size, device=f"cuda:{n}", dtype=torch.uint8).random_() for n in (0, 1)]
            for _ in range(2)
        ]
        back = [torch.cuda.Stream(n) for n in (0, 1)]  # a copy uses a stream of either device

        def call(_: int) -> None:
            pairs[0][1].copy_(pairs[0][0], non_blocking=True)
            if both:
                with torch.cuda.stream(back[0]), torch.cuda.stream(back[1]):
                    pairs[1][0].copy_(pairs[1][1], non_blocking=True)
                torch.cuda.current_stream(0).wait_stream(back[0])

        return call

    label = f"{size // MB} MiB" if size < GB else f"{size // GB} GiB"
    return Case(
        table="gpu to gpu",
        name=f"both ways, {label} each" if both else f"0 to 1, {label}",
        precision="bytes",
        make=make,
        moved=2 * size if both else size,
        gpus=2,
    )


def cases() -> Iterator[Case]:  # noqa: C901, PLR0912  a list
    """All of them, in the order of the documents. Making the list takes little memory."""
    for n in (1024, 2048, 4096, 8192, 16384):
        yield gemm("gemm", n, "fp16")
    for precision in ("fp32", "tf32", "fp16", "bf16", "fp64", "fp8"):
        yield gemm("precision", 8192, precision)
    for precision in ("fp16", "bf16", "tf32"):
        yield batched(precision)
    for batch, inside, outside, side, k in (
        (32, 3, 64, 224, 3), (32, 64, 128, 112, 3), (32, 128, 256, 56, 3), (32, 256, 512, 28, 3),
        (8, 3, 64, 512, 7),
    ):  # fmt: skip
        yield convolution(batch, inside, outside, side, k)
    for channels, side in ((64, 112), (256, 56), (512, 28)):
        yield convolution(32, channels, channels, side, 3, groups=channels)
    for batch, heads, length, dim, precision in (
        (8, 12, 128, 64, "fp16"), (8, 12, 512, 64, "fp16"), (8, 12, 2048, 64, "fp16"),
        (4, 32, 1024, 128, "fp16"), (4, 32, 4096, 128, "fp16"),
        (8, 12, 512, 64, "bf16"), (4, 32, 2048, 128, "bf16"),
    ):  # fmt: skip
        yield attention(batch, heads, length, dim, precision)
    for causal in (True, False):
        for backend in BACKENDS:
            yield attention(
                16, 96, 4096, 128, "fp16", causal=causal, backend=backend, table="sdpa baseline"
            )
    for length, outside, precision in (
        (1, 4096, "fp16"), (1, 11008, "fp16"), (128, 4096, "fp16"), (128, 4096, "bf16"),
        (512, 4096, "fp16"),
    ):  # fmt: skip
        yield linear(32, length, 4096, outside, precision)
    for hidden in ((32, 512, 4096), (8, 2048, 4096), (4, 4096, 8192)):
        yield pointwise("layernorm", *hidden)
    for scores in ((32, 12, 512, 512), (8, 32, 2048, 2048), (4, 32, 4096, 4096)):
        yield pointwise("softmax", *scores)
    for batch in (1, 8, 32, 64, 128):
        yield resnet(batch, "fp32")
    for batch in (1, 8, 32, 64, 128, 256):
        yield resnet(batch, "fp16")
    for precision in ("fp16", "bf16"):
        for batch, length in ((8, 128), (8, 512), (4, 1024), (2, 2048), (1, 4096)):
            yield transformer(batch, length, precision)
    for batch in (1, 32, 64, 128):
        for mode in ("", "reduce-overhead"):
            yield resnet(batch, "fp16", "torch.compile", mode)
    yield addition()
    yield copying()
    for size in (1 * MB, 10 * MB, 100 * MB, 500 * MB, GB):
        yield transfer(size)
    yield transfer(GB, both=True)
