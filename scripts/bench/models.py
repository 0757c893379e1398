"""The two models of the tables, in torch alone: images without torchvision measure them, too."""

from __future__ import annotations

import torch
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
