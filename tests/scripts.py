"""Programs of scripts/ as modules: they have no suffix, or lie beside no package."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from torch_images.build.render import SHARED

ROOT = Path(__file__).resolve().parents[1]


def load(path: str) -> ModuleType:
    """The module of a file below the project's folder, made anew. It is not left in sys.modules."""
    name = "script_of_" + "".join(c if c.isalnum() else "_" for c in path)
    loader = SourceFileLoader(name, str(ROOT / path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up while they are made
    try:
        loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def installed(folder: Path, name: str) -> Path:
    """The programs of scripts/image/NAME and what they import, in `folder`, as a context has them."""
    shutil.copytree(ROOT / "scripts" / "image" / name, folder)
    for module in SHARED[name]:
        path = folder / "torch_images" / module
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "torch_images" / module, path)
    return folder
