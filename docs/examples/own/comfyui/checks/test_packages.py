import importlib

import pytest

NAMES = (
    "av",
    "comfy_aimdo",
    "comfy_kitchen",
    "comfyui_frontend_package",
    "kornia",
    "spandrel",
    "torchaudio",
    "torchsde",
    "torchvision",
)


@pytest.mark.parametrize("name", NAMES)
def test_imports(name: str) -> None:
    importlib.import_module(name)
