"""All cases: each row of the documents' tables, with its operations and bytes."""

from __future__ import annotations

from collections.abc import Iterator

import attention
import backends
import graphs
import networks
import optimizers
import parallel
import products
import quantized
import settings
import transfers
from case import GB, MB, Case


def cases() -> Iterator[Case]:
    """All cases, in the order of the documents. The list itself takes little memory."""
    yield from _products()
    yield from _attention()
    yield from _layers()
    yield from _networks()
    yield from _transfers()
    yield from _graphs()
    yield from _settings()
    yield from _weights()
    for kind in parallel.KINDS:
        for gpus in parallel.SIZES:
            yield parallel.scaling(kind, gpus)
    yield from _backends()  # last, since nvcc takes minutes for CUTLASS


def _products() -> Iterator[Case]:
    for n in (1024, 2048, 4096, 8192, 16384):
        yield products.gemm("gemm", n, "fp16")
    for precision in ("fp32", "tf32", "fp16", "bf16", "fp64", "fp8"):
        yield products.gemm("precision", 8192, precision)
    for precision in ("fp16", "bf16", "tf32"):
        yield products.batched(precision)
    for batch, inside, outside, side, k in (
        (32, 3, 64, 224, 3), (32, 64, 128, 112, 3), (32, 128, 256, 56, 3), (32, 256, 512, 28, 3),
        (8, 3, 64, 512, 7),
    ):  # fmt: skip
        yield products.convolution(batch, inside, outside, side, k)
    for channels, side in ((64, 112), (256, 56), (512, 28)):
        yield products.convolution(32, channels, channels, side, 3, groups=channels)


def _attention() -> Iterator[Case]:
    for batch, heads, length, dim, precision in (
        (8, 12, 128, 64, "fp16"), (8, 12, 512, 64, "fp16"), (8, 12, 2048, 64, "fp16"),
        (4, 32, 1024, 128, "fp16"), (4, 32, 4096, 128, "fp16"),
        (8, 12, 512, 64, "bf16"), (4, 32, 2048, 128, "bf16"),
    ):  # fmt: skip
        yield attention.forward(batch, heads, length, dim, precision)
    for causal in (True, False):
        for backend in attention.BACKENDS:
            yield attention.forward(
                16, 96, 4096, 128, "fp16", causal=causal, backend=backend, table="sdpa baseline"
            )
    yield attention.memory(16, 96, 4096, 128, "fp16")
    yield attention.training(16, 96, 4096, 128, "fp16")
    yield attention.training(4, 32, 4096, 128, "bf16")
    yield attention.training(8, 12, 2048, 64, "fp16")
    for precision in ("fp16", "bf16"):
        yield attention.grouped(4, 32, 4096, 128, precision, groups=8)
    for batch, length in ((1, 16384), (4, 1024)):
        yield attention.forward(
            batch, 32, length, 128, "fp16", causal=True, table="attention shapes"
        )
    yield attention.queued(4, 32, 1024, 128, "fp16")


def _layers() -> Iterator[Case]:
    for length, outside, precision in (
        (1, 4096, "fp16"), (1, 11008, "fp16"), (128, 4096, "fp16"), (128, 4096, "bf16"),
        (512, 4096, "fp16"),
    ):  # fmt: skip
        yield products.linear(32, length, 4096, outside, precision)
    for hidden in ((32, 512, 4096), (8, 2048, 4096), (4, 4096, 8192)):
        yield products.pointwise("layernorm", *hidden)
    for scores in ((32, 12, 512, 512), (8, 32, 2048, 2048), (4, 32, 4096, 4096)):
        yield products.pointwise("softmax", *scores)


def _networks() -> Iterator[Case]:
    for batch in (1, 8, 32, 64, 128):
        yield networks.resnet(batch, "fp32")
    for batch in (1, 8, 32, 64, 128, 256):
        yield networks.resnet(batch, "fp16")
    for precision in ("fp16", "bf16"):
        for batch, length in ((8, 128), (8, 512), (4, 1024), (2, 2048), (1, 4096)):
            yield networks.transformer(batch, length, precision)
    for batch in (1, 32, 64, 128):
        for mode in ("", "reduce-overhead"):
            yield networks.resnet(batch, "fp16", "torch.compile", mode)
    for layers in networks.STACKS:
        for mode in ("", "max-autotune"):
            yield networks.stacked(*layers, mode)


def _transfers() -> Iterator[Case]:
    yield transfers.addition()
    yield transfers.copying()
    for size in (1 * MB, 10 * MB, 100 * MB, 500 * MB, GB):
        yield transfers.transfer(size)
    yield transfers.transfer(GB, both=True)


def _graphs() -> Iterator[Case]:
    for model in graphs.MODELS:
        for train in (False, True):
            for capture in (False, True):
                yield graphs.graph(model, train=train, capture=capture)


def _backends() -> Iterator[Case]:
    for backend, precision, shapes in backends.CASES:
        for shape in shapes:
            yield backends.product(*shape, backend, precision)


def _settings() -> Iterator[Case]:
    for name in settings.ALLOCATORS:
        yield settings.allocator(name)
    for kind in optimizers.KINDS:
        yield optimizers.adamw(kind)
    for benchmark in (False, True):
        yield settings.cudnn(benchmark=benchmark)
    for config in settings.WORKSPACES:
        yield settings.workspace(config)


def _weights() -> Iterator[Case]:
    for precision in ("bf16", "fp8", "int8", "int4"):
        yield quantized.linear(precision)
    for precision in quantized.BYTES:
        yield quantized.memory(precision)
