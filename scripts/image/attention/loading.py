"""The import of FlashAttention-4, without what its calls never use.

It needs six small modules of the package quack. The package's own `__init__` imports quack's
kernels as well, with an autotuner, and so torch's compiler (Dynamo, SymPy): half of the time. It
runs here when a program asks for quack itself. Kernels are compiled to the same bytes either way.
"""

import contextlib
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Any

PACKAGE, FIRST = "quack", "quack.dsl"  # `__init__` imports FIRST before all else
PTXAS = "CUTE_DSL_PTXAS_PATH"  # with it `__init__` changes the compiler, too
# It disassembles kernels for who debugs them with the variable DUMPS, and imports all of Triton.
DISASSEMBLER, DUMPS = "triton.tools.disasm", "CUTE_CUBIN_PATH"


def interface() -> Any:
    """FlashAttention-4's module flash_attn.cute.interface. Raises what its import raises."""
    with _without_disassembler(), _without_collections(), _deferred():
        return importlib.import_module("flash_attn.cute.interface")


@contextlib.contextmanager
def _without_disassembler() -> Iterator[None]:
    """While modules are imported that do without DISASSEMBLER where it is missing."""
    if DISASSEMBLER in sys.modules or os.environ.get(DUMPS):
        yield
        return
    missing: Any = None  # what importlib takes for a module that cannot be imported
    sys.modules[DISASSEMBLER] = missing
    try:
        yield
    finally:
        del sys.modules[DISASSEMBLER]


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Without Python's search for circles: an import makes many objects, and hardly any garbage."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


@contextlib.contextmanager
def _deferred() -> Iterator[None]:
    """While modules of PACKAGE are imported, but not what its `__init__` imports.

    Afterwards the package itself counts as not imported, so that its next import runs `__init__`.
    """
    spec = importlib.util.find_spec(PACKAGE) if PACKAGE not in sys.modules else None
    if spec is None or os.environ.get(PTXAS):
        yield
        return
    sys.modules[PACKAGE] = package = importlib.util.module_from_spec(spec)
    try:
        importlib.import_module(FIRST)
        yield
    finally:
        del sys.modules[PACKAGE]
        sys.meta_path.insert(0, _Rest(package))


class _Rest:
    """Finds PACKAGE, and imports it into the module that has some of its submodules already."""

    def __init__(self, package: Any) -> None:
        self._package = package
        self._loader = package.__loader__

    def find_spec(self, name: str, *_: object) -> Any:
        if name != PACKAGE:
            return None
        spec = self._package.__spec__
        spec.loader = self
        return spec

    def create_module(self, _: object) -> Any:
        return self._package

    def exec_module(self, module: Any) -> None:
        sys.meta_path.remove(self)
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
