"""Releases of torch in images.yaml, for integration tests; unit tests have those of the fixture."""

from __future__ import annotations

from pathlib import Path

from torch_images.config.load import load_config

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
