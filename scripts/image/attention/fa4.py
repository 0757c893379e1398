"""Calls of FlashAttention-4 (flash-attn-4, written in CuTe's language, compiled when called).

FlashAttention-4's own function takes about 95 us of Python for a call. So the compiled function
that it calls is kept by shape, and called by itself afterwards: 25 us. Its arguments are those of
the release that the lock has; tests/container/test_gpu_attention.py compares both calls.
"""

import contextlib
import hashlib
import importlib
import os
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from platform import machine
from typing import Any

import torch
from torch_image_attention import loading, say
from torch_image_attention.kept import FUNCTION, Folder, Kernels

CACHE_ON = "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"
CACHE_DIR = "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"
# The sizes of heads that are taken, by the first number of a compute capability: those that were
# tested on a GPU. Elsewhere the compiled functions have other arguments, too.
WIDTHS = {9: (64, 96, 128, 256)}
BATCHES = 256  # with more sequences than this it has other kernels
BLOCK = 256  # rows, more than a block of any kernel has
# Its functions that compile kernels for these calls, and what a line calls those that take long.
CACHES = {
    "_flash_attn_fwd": "forward pass",
    "_flash_attn_bwd": "backward pass",
    "_bwd_preprocess": "",
    "_bwd_postprocess_convert": "",
    "_compute_tile_cumsum": "",
    "_compute_blocks_to_batch": "",
}
KEPT = 4096  # calls that are remembered by shape; programs with changing lengths have many

_lock = threading.RLock()  # autograd calls from threads of its own
_calls: dict[tuple[object, ...], Any] = {}  # the compiled function, by shape
_seen: set[tuple[object, ...]] = set()  # other calls whose kernels are compiled
_quiet: set[tuple[object, ...]] = set()  # kinds of kernels that were compiled
_module: Any = None  # flash_attn.cute.interface
_aux: Any = None  # an argument that stands for nothing
_broken = False


@dataclass(frozen=True, slots=True)
class Ragged:
    """Sequences after each other: where each begins and the last one ends, and the longest one."""

    starts_q: torch.Tensor
    starts_k: torch.Tensor
    longest_q: int
    longest_k: int


@dataclass(frozen=True, slots=True)
class Attention:
    """What to compute.

    Tensors are batch, rows, heads, width; with `ragged`, rows, heads, width.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    causal: bool
    scale: float
    ragged: Ragged | None = None

    @property
    def kernel(self) -> tuple[object, ...]:
        """What kernel is compiled for it, but for rare cases."""
        query, key = self.query, self.key
        ratio = query.shape[-2] // key.shape[-2]
        return (query.dtype, query.shape[-1], ratio, self.causal, self.ragged is not None)

    @property
    def kind(self) -> tuple[object, ...]:
        """All that decides which kernel is compiled, and more."""
        query, key = self.query, self.key
        kind = (
            query.stride(), key.stride(), self.value.stride(), query.dtype, self.causal,
            query.device,
        )  # fmt: skip
        ragged = self.ragged
        if ragged is None:
            return (query.shape, key.shape, *kind)
        # It has other kernels for many sequences, and for those that one block of rows holds.
        many = len(ragged.starts_q) - 1 > BATCHES
        longest = (min(ragged.longest_q, BLOCK + 1), min(ragged.longest_k, BLOCK + 1))
        return (query.shape[1:], key.shape[1:], many, longest, *kind)


def cache_folder() -> str:
    """Where compiled kernels are kept, unless told otherwise. A volume there outlives containers.

    FlashAttention-4's own choice is a folder in /tmp whose name others can guess.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return os.environ.get(CACHE_DIR) or f"{base}/flash-attention-4"


def broken() -> bool:
    """Whether FlashAttention-4 has failed in this process."""
    return _broken


def ready(*, waits: bool) -> bool:
    """Whether FlashAttention-4 can be called; it is imported first, if the caller `waits` for it.

    If it cannot be imported, this is said once, and nothing takes it in this process.
    """
    if _module is None and waits and not _broken:
        with _lock:
            if _module is None:
                _load()
    return _module is not None


def _load() -> None:
    global _module, _aux  # noqa: PLW0603  once in a process
    kept = _folder()
    try:
        with _compiling(()), _own_cache_off():
            module = loading.interface()
        _aux = module.AuxData(None, None)
        _keep(module, kept)
    except Exception as error:  # noqa: BLE001  whatever it is, torch's own attention works
        give_up(error)
    else:
        _module = module


@contextlib.contextmanager
def _own_cache_off() -> Iterator[None]:
    """While FlashAttention-4 is imported: it reads CACHE_ON then, and kept.py takes its place."""
    previous = os.environ.get(CACHE_ON)
    os.environ[CACHE_ON] = "0"
    try:
        yield
    finally:
        if previous is None:
            del os.environ[CACHE_ON]
        else:
            os.environ[CACHE_ON] = previous


def _folder() -> Path | None:
    """Where compiled kernels are kept; None where nothing is, or where it cannot be written."""
    if os.environ.get(CACHE_ON, "1") != "1":
        return None
    folder = cache_folder()
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
    except OSError:
        return None
    return Path(folder) if os.access(folder, os.W_OK | os.X_OK) else None


def _keep(module: Any, folder: Path | None) -> None:
    """Put our cache in the place of FlashAttention-4's, with what that one has."""
    if folder is not None:
        # Kernels follow from the sources, but FlashAttention-4 does not count quack's among them.
        sources = importlib.import_module("flash_attn.cute.cache_utils")
        stamp = sources._compute_source_fingerprint() + version("quack-kernels") + machine()
        folder /= hashlib.sha256(stamp.encode()).hexdigest()

    def load(file: Path) -> Any:
        return getattr(module.cute.runtime.load_module(str(file), enable_tvm_ffi=True), FUNCTION)

    for name, step in CACHES.items():
        function = getattr(module, name)
        known = getattr(function.compile_cache, "cache", {})
        place = Folder(folder and folder / name.strip("_"), load)
        function.compile_cache = Kernels(known, place, step)


def give_up(error: Exception) -> None:
    """Take torch's own attention from now on in this process, and say why."""
    global _broken, _module
    with _lock:
        if not _broken:
            _broken, _module = True, None
            say(f"attention is torch's own from now on, because FlashAttention-4 failed: {error}")


@contextlib.contextmanager
def _compiling(kernel: tuple[object, ...]) -> Iterator[None]:
    """While something may be compiled: one thread at a time, and without the compiler's warnings.

    It warns of arguments that FlashAttention-4 hands it, also where warnings are errors. Filters of
    warnings are one for all threads, so they are left alone once a `kernel` is there.
    """
    with _lock, contextlib.ExitStack() as stack:
        if kernel not in _quiet:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
        yield
        _quiet.add(kernel)


@contextlib.contextmanager
def _once(kind: tuple[object, ...], kernel: tuple[object, ...]) -> Iterator[bool]:
    """Around a call of a kind, whose first one may compile: whether it may be made now.

    CUDA loads no kernels while a graph is captured.
    """
    if kind in _seen:
        yield True
    elif torch.cuda.is_current_stream_capturing():
        yield False
    else:
        with _compiling(kernel):
            yield True
        if len(_seen) >= KEPT:
            _seen.clear()
        _seen.add(kind)


def forward(attention: Attention, out: torch.Tensor, lse: torch.Tensor | None) -> bool:
    """Write the result to `out`, and to `lse` the logarithm of each row's sum of exponentials.

    `lse` is batch, heads, queries, in float32. If the result is False, nothing was written: a
    kernel would have to be compiled while a CUDA graph is captured.
    """
    query, key, value = attention.query, attention.key, attention.value
    kind = (lse is None, *attention.kind)
    compiled = _calls.get(kind)
    if compiled is not None:
        nothing = (None,) * 9  # of what other kinds of attention have
        compiled(query, key, value, out, lse, attention.scale, *nothing, _aux, None, None)
        return True
    if torch.cuda.is_current_stream_capturing():
        return False
    function = _module._flash_attn_fwd
    how = {"softmax_scale": attention.scale, "causal": attention.causal}
    with _compiling(("forward", lse is None, *attention.kernel)):
        function(query, key, value, **how, out=out, lse=lse)
        if len(_calls) >= KEPT:
            _calls.clear()
        _calls[kind] = function.compile_cache.last
    return True


def forward_ragged(attention: Attention) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The result for sequences after each other, and `lse` as above: heads, rows.

    None if a kernel would have to be compiled while a CUDA graph is captured.
    """
    assert attention.ragged
    out = torch.empty_like(attention.query)
    with _once(("forward", *attention.kind), ("forward", *attention.kernel)) as may:
        if not may:
            return None
        _, lse, *_ = _module._flash_attn_fwd(
            attention.query, attention.key, attention.value, softmax_scale=attention.scale,
            causal=attention.causal, return_lse=True, out=out, **_lengths(attention.ragged),
        )  # fmt: skip
    return out, lse


def backward(
    attention: Attention, *, grad: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    grads: tuple[torch.Tensor, ...],
) -> bool:  # fmt: skip
    """Write the gradients of query, key and value to `grads`.

    `out` and `lse` may come from any implementation's forward pass. If the result is False, nothing
    was written: a kernel would have to be compiled while a CUDA graph is captured.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    kind = ("backward", deterministic, grad.stride(), out.stride(), *attention.kind)
    with _once(kind, ("backward", deterministic, *attention.kernel)) as may:
        if may:
            _module._flash_attn_bwd(
                attention.query, attention.key, attention.value, out, grad, lse,
                softmax_scale=attention.scale, causal=attention.causal, deterministic=deterministic,
                dq=grads[0], dk=grads[1], dv=grads[2],
                **(_lengths(attention.ragged) if attention.ragged else {}),
            )  # fmt: skip
        return may


def _lengths(ragged: Ragged) -> dict[str, Any]:
    return {
        "cu_seqlens_q": ragged.starts_q,
        "cu_seqlens_k": ragged.starts_k,
        "max_seqlen_q": ragged.longest_q,
        "max_seqlen_k": ragged.longest_k,
    }
