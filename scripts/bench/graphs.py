"""The same work eager and in one CUDA graph: inference, and a whole step of training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from capture import captured, step
from case import Case, loaded, random, width
from measure import Call
from models import encoder, mask_rcnn, resnet50
from torch import nn

TABLE = "cuda graphs"
PRECISION = "bf16"
IMAGES = 4  # dimensions of a batch of images
# A model that is small enough for its kernels to be shorter than their launch.
SMALL = {"width": 512, "heads": 8, "layers": 4, "wide": 2048}
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer, B=8, S=128": (lambda: encoder(**SMALL), (8, 128, SMALL["width"])),
    "ResNet-50, B=1": (resnet50, (1, 3, 224, 224)),
    "Mask R-CNN to its proposals, B=1": (mask_rcnn, (1, 3, 800, 1344)),
    "BERT-large, B=4, S=512": (lambda: encoder(layers=24, wide=4096), (4, 512, 1024)),
}


def graph(model: str, *, train: bool, capture: bool) -> Case:
    """Inference or training of a model, eager or captured.

    A captured model reads each batch from the same memory, so it includes a copy of the batch.
    """
    make, shape = MODELS[model]

    def call(sets: int) -> Call:
        net = loaded(make, PRECISION).train(train)
        inputs = [random(PRECISION, *shape) for _ in range(sets)]
        if train:
            by = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True, capturable=True)
        still = inputs[0].clone()

        def run(x: torch.Tensor) -> object:
            if train:
                return step(net, by, x)
            with torch.no_grad():
                return net(x)

        if not capture:
            return lambda i: run(inputs[i])
        return captured(lambda: run(still), lambda i: still.copy_(inputs[i]))

    size = width(PRECISION)
    for side in shape:
        size *= side
    kind = "training step" if train else "inference"
    return Case(
        table=TABLE,
        name=f"{model}, {kind}, {'graph' if capture else 'eager'}",
        precision=PRECISION,
        make=call,
        size=size,
        same="weights",
        items=shape[0],
        unit="img" if len(shape) == IMAGES else "seq",
        baseline=f"{TABLE}/{model}, {kind}, eager/{PRECISION}" if capture else "",
        needs=(8, 0),
    )
