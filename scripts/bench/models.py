"""The models of the tables. All but one need only torch, so that any image can measure them."""

from __future__ import annotations

import torch
from case import Skipped
from counting import BLOCKS, CLASSES
from torch import nn


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; the stride is in the middle one."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images of (batch, channels, height, width)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    """ResNet-50 for 1000 classes: 25.6 million parameters."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inside = 64
    for stage, count in enumerate(BLOCKS):
        width = 64 * 2**stage
        for block in range(count):
            layers.append(Bottleneck(inside, width, 2 if stage and not block else 1))
            inside = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES)]
    return nn.Sequential(*layers).eval()


def encoder(width: int = 1024, heads: int = 16, layers: int = 6, wide: int = 2048) -> nn.Module:
    """A transformer's encoder, PyTorch's own layers; `wide` is their default."""
    layer = nn.TransformerEncoderLayer(width, heads, wide, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


class Proposing(nn.Module):
    """The part of torchvision's Mask R-CNN whose shapes do not depend on its detections.

    That is ResNet-50, the pyramid of features, and the head that scores boxes in each of its
    levels. What follows chooses among the boxes, so no CUDA graph can hold it.
    """

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = whole.backbone, whole.rpn.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images of (batch, 3, height, width) -> scores and boxes of all levels, (batch, n)."""
        scores, boxes = self.head(list(self.backbone(x).values()))
        return torch.cat([part.flatten(1) for part in (*scores, *boxes)], dim=1)


def mask_rcnn() -> nn.Module:
    """Mask R-CNN with random weights, up to its proposals. Raises Skipped without torchvision."""
    try:
        from torchvision.models import detection
    except ImportError as error:
        raise Skipped(f"torchvision is not installed: {error}") from None
    whole = detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None)
    return Proposing(whole).eval()


def stack(side: int, layers: int, dtype: torch.dtype) -> nn.Module:
    """Linear layers without bias, one after the other; side**2 weights each, made on the GPU."""
    made = (nn.Linear(side, side, bias=False, device="cuda", dtype=dtype) for _ in range(layers))
    return nn.Sequential(*made).eval()
