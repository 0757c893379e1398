"""Products by each backend of torch.compile: ATen, Triton, CUTLASS; with the time to compile."""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
from caches import first
from case import LIMIT, Case, Ready, Skipped, random, width

TABLE = "gemm by backend"
MODE = "max-autotune-no-cudagraphs"
# Seconds for a case of CUTLASS. On 32 processors it took 122 on Python 3.12, and 394 on 3.11.2:
# up to 3.11.8 torch starts one nvcc at a time.
PATIENCE = 600
# CUTLASS has thousands of kernels, and nvcc takes half a minute for one. These are its kernels for
# large products on Hopper; the swizzles are of one kernel.
CUTLASS: dict[str, Any] = {
    "cutlass_max_profiling_configs": 4,
    "cutlass_max_profiling_swizzle_options": [1, 2],
}
HOPPER = (
    "128x256x64_2x1x1_0_.*align8_warpspecialized_cooperative_epi_tma"
    "|128x128x64_2x1x1_0_.*align8_warpspecialized_pingpong_epi_tma"
)


def product(m: int, n: int, k: int, backend: str, precision: str) -> Case:
    """(m, k) times (k, n), where only one backend may offer kernels, from an empty cache."""
    shape = f"{m}x{n}x{k}"

    def make(sets: int) -> Ready:
        from torch._inductor import config

        patches: dict[str, Any] = {"max_autotune_gemm_backends": backend.upper()}
        if backend == "CUTLASS":
            patches |= limits(config)
        inputs = [(random(precision, m, k), random(precision, k, n)) for _ in range(sets)]
        compiled = torch.compile(lambda a, b: a @ b, mode=MODE, fullgraph=True)
        chosen: list[str] = []
        forget()
        with config.patch(patches), watched(chosen):
            figures = first(lambda: compiled(*inputs[0]))
        return Ready(
            call=lambda i: compiled(*inputs[i]),
            figures=figures,
            notes={"chosen": chosen[-1] if chosen else "no candidates were compared"},
        )

    settings = {"backends": backend.upper(), "mode": MODE}
    if backend == "CUTLASS":
        settings |= {name: str(value) for name, value in CUTLASS.items()}
        settings["cutlass_op_allowlist_regex, on 9.0"] = HOPPER
    return Case(
        table=TABLE,
        name=f"{shape}, {backend}",
        precision=precision,
        make=make,
        size=(m * k + k * n) * width(precision),
        flops=2 * m * n * k,
        baseline="" if backend == "ATen" else f"{TABLE}/{shape}, ATen/{precision}",
        needs=(8, 0),
        settings=settings,
        limit=PATIENCE if backend == "CUTLASS" else LIMIT,
    )


def limits(config: Any) -> dict[str, Any]:
    """Settings that limit CUTLASS's profiling. Raises Skipped if CUTLASS cannot be used."""
    part = "cutlass" if hasattr(config, "cutlass") else "cuda"  # the older name
    if not importable():
        folder = getattr(config, part).cutlass_dir
        raise Skipped(f"torch.compile finds no CUTLASS in {folder}: TORCHINDUCTOR_CUTLASS_DIR")
    if not nvcc():
        raise Skipped("no nvcc, which compiles CUTLASS's kernels")
    values = dict(CUTLASS)
    if torch.cuda.get_device_capability() == (9, 0):
        values["cutlass_op_allowlist_regex"] = HOPPER
    return {f"{part}.{name}": value for name, value in values.items()}


def forget() -> None:
    """Make torch write the sources of CUTLASS's kernels again.

    It caches their paths for the whole process, although a fresh cache is another folder.
    """
    from torch._inductor import codecache

    write = getattr(getattr(codecache, "CUDACodeCache", None), "write", None)
    clear = getattr(write, "cache_clear", None)
    if clear:
        clear()


def importable() -> bool:
    """Whether torch.compile can import CUTLASS's generator of kernels."""
    try:
        from torch._inductor.codegen.cutlass.utils import try_import_cutlass
    except ImportError:  # before torch 2.11
        from torch._inductor.codegen.cuda.cutlass_utils import try_import_cutlass
    return bool(try_import_cutlass())


def nvcc() -> str | None:
    """The compiler that torch.compile would use for CUTLASS's kernels, or None."""
    folder = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    places = (os.environ.get("CUDACXX", ""), f"{folder}/bin/nvcc", "nvcc")
    return next((found for place in places if (found := shutil.which(place))), None)


class watched:  # noqa: N801  used as a function
    """A context that records the fastest choice of each product tuned in it."""

    def __init__(self, chosen: list[str]) -> None:
        self.chosen = chosen

    def __enter__(self) -> None:
        """Start recording the tuner's times."""
        from torch._inductor.select_algorithm import add_feedback_saver

        add_feedback_saver(self.note)

    def note(self, timings: dict[Any, float], *_: object) -> None:
        """Keep the fastest of the choices. Other arguments differ between releases of torch."""
        if timings:
            best = min(timings, key=lambda choice: timings[choice])
            words = [str(getattr(best, name, "") or "") for name in ("name", "description")]
            self.chosen.append(f"{' '.join(filter(None, words))[:160]}, of {len(timings)}")

    def __exit__(self, *_: object) -> None:
        """Stop recording."""
        from torch._inductor.select_algorithm import clear_feedback_savers

        clear_feedback_savers()


SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (4096, 11008, 4096), (512, 4096, 4096))
SMALL = (1024, 1024, 1024)
FEW_ROWS = (64, 16384, 16384)  # the largest layer of the table "compiled layer"
CASES: tuple[tuple[str, str, tuple[tuple[int, int, int], ...]], ...] = (
    ("ATen", "bf16", (*SHAPES, SMALL)),
    ("Triton", "bf16", (*SHAPES, SMALL)),
    ("ATen", "fp16", (SHAPES[0], FEW_ROWS)),
    ("Triton", "fp16", (SHAPES[0], FEW_ROWS)),
    ("CUTLASS", "bf16", (SHAPES[1], SHAPES[3], SMALL)),
    ("CUTLASS", "fp16", (SHAPES[0], FEW_ROWS)),
)
