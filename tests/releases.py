"""What images.yaml has: releases of torch, for tests that must not change with them, and less of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch_images.config.load import load_config
from torch_images.config.types import Config

_CONFIG = load_config(Path(__file__).resolve().parents[1] / "images.yaml")
_NEWEST = {cuda.version: cuda.torch[-1] for cuda in _CONFIG.cudas}
_FORK = {cuda: torch for s in _CONFIG.sources if s.name == "fork" for cuda, torch in s.beside}

# The newest release for each CUDA version, and their minor versions.
T128, T130, T132 = _NEWEST["12.8"], _NEWEST["13.0"], _NEWEST["13.2"]
M128, M130, M132 = (".".join(torch.split(".")[:2]) for torch in (T128, T130, T132))
# The release before the newest one for CUDA 13.0.
OLDER130 = next(cuda.torch[-2] for cuda in _CONFIG.cudas if cuda.version == "13.0")
# The release whose CUDA libraries the fork has for CUDA 13.0.
F130 = _FORK["13.0"]


def fewer(
    config: Config, *, cudas: tuple[str, ...] = (), platforms: tuple[str, ...] = ()
) -> Config:
    """The configuration with these CUDA versions and platforms alone, in its catalogue, too."""
    kept = {
        "cuda": cudas or config.names("cuda"),
        "platform": platforms or config.names("platform"),
    }
    rows = (
        replace(
            row,
            values=tuple(
                (axis, tuple(v for v in values if v in kept.get(axis, values)))
                for axis, values in row.values
            ),
        )
        for row in config.catalogue
    )
    return replace(
        config,
        cudas=tuple(c for c in config.cudas if c.version in kept["cuda"]),
        platforms=tuple(p for p in config.platforms if p.name in kept["platform"]),
        catalogue=tuple(row for row in rows if all(values for _, values in row.values)),
    )
