"""The releases of torch that images.yaml names, for tests that must not change with them."""

from __future__ import annotations

from pathlib import Path

from torch_images.config.load import load_config

_CONFIG = load_config(Path(__file__).resolve().parents[1] / "images.yaml")
_NEWEST = {cuda.version: cuda.torch[-1] for cuda in _CONFIG.cudas}
_FORK = {cuda: torch for s in _CONFIG.sources if s.name == "fork" for cuda, torch in s.beside}

# The newest release for CUDA 12.8 and for 13.0, and their minor versions.
T128, T130 = _NEWEST["12.8"], _NEWEST["13.0"]
M128, M130 = (".".join(torch.split(".")[:2]) for torch in (T128, T130))
# The release before the newest one for CUDA 13.0.
OLDER130 = next(cuda.torch[-2] for cuda in _CONFIG.cudas if cuda.version == "13.0")
# The release whose CUDA libraries the fork has for CUDA 13.0.
F130 = _FORK["13.0"]
