"""The four operators of torch by which attention reaches a GPU, with FlashAttention-4 behind them.

On Hopper, scaled_dot_product_attention takes cuDNN's operator; what asks for flash attention, and
torch.nn.attention.varlen, take the flash operator. Each kernel here looks at a call, and gives it
to FlashAttention-4 or to the kernel that torch registered. So autograd, torch.compile, CUDA graphs
and all that chooses among operators work as before.

Forward and backward pass are given away each by itself: all agree on what the one leaves to the
other, the natural logarithm of the sum of each row's exponentials (`lse`).
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.library import Library, get_kernel
from torch_image_attention import FA4, STOCK, fa4, rules
from torch_image_attention.fa4 import Attention, Ragged
from torch_image_attention.rules import BACKWARD, CAPTURED, DETERMINISTIC, FORWARD, USUAL

CUDNN = "_scaled_dot_product_cudnn_attention"
FLASH = "_flash_attention_forward"
CUDNN_BACKWARD, FLASH_BACKWARD = f"{CUDNN}_backward", "_flash_attention_backward"
HALVES = (torch.float16, torch.bfloat16)
ALIGNED = 16  # bytes, what the kernels' loads need
INDEXED = 2**31  # values of a tensor; the kernels count in 32 bits
# Heads and batches; the kernels count them by the second and third dimension of a grid of CUDA's
# (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications).
GRID = 65535
BATCHED, RAGGED = 4, 3  # dimensions
UNBOUND = (None, -1)  # a window's bound
T = TypeVar("T")

mode = STOCK  # what `register` was told last
_libraries: list[Library] = []  # a library that is not kept is taken back
_stock: dict[str, Any] = {}  # torch's own kernel by operator
_capabilities: dict[torch.device, tuple[int, int]] = {}
_cudnn_version: list[str] = []  # read once: "9.19"
_warmed: set[tuple[object, ...]] = set()  # shapes whose kernels a warm-up has compiled


def register(chosen: str) -> None:
    """Take calls as `chosen` says; before that, once, put the kernels here before torch's own.

    Raises RuntimeError or AttributeError where torch has other operators.
    """
    global mode  # noqa: PLW0603  the dispatcher is one, too
    mode = chosen
    if _libraries:
        return
    _stock.update({name: get_kernel(f"aten::{name}", "CUDA") for name in KERNELS})
    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch warns of a kernel that is replaced, and this is what is wanted.
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered")
        for name, kernel in KERNELS.items():
            library.impl(name, kernel, "CUDA", with_keyset=True)
    _libraries.append(library)
    _offer()


def _offer() -> None:
    """Make torch.nn.attention.activate_flash_attention_impl("FA4") mean these kernels.

    torch's own fail with this release of FlashAttention-4, which returns more values.
    """
    try:
        from torch.nn.attention import register_flash_attention_impl
    except ImportError:
        return
    register_flash_attention_impl("FA4", register_fn=_Activated)


class _Activated:
    """FlashAttention-4 for all that it can do, until `remove`."""

    def __init__(self) -> None:
        self._before = mode
        register(FA4)

    def remove(self) -> None:
        register(self._before)


def _cudnn(  # noqa: PLR0917  torch's signature
    keys: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attn_bias: torch.Tensor | None, compute_log_sumexp: bool, dropout_p: float = 0.0,
    is_causal: bool = False, return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Attention by cuDNN's operator: batch, heads, rows, width.

    A program that has turned flash attention off, for example by sdpa_kernel, wants cuDNN's kernel.
    """
    eligible = (
        attn_bias is None
        and not dropout_p
        and not return_debug_mask
        and torch._C._get_flash_sdp_enabled()
        and _usual(scale)
        and _chosen(FORWARD, query, key, value, is_causal, heads=1, rows=2)
    )
    if eligible:
        out = torch.empty_like(query)
        lse = query.new_empty(query.shape[:3], dtype=torch.float32) if compute_log_sumexp else None
        attention = Attention(*map(_flipped, (query, key, value)), is_causal, _scale(scale, query))
        if _attempt(lambda: fa4.forward(attention, _flipped(out), lse), query.device):
            seed, offset = (query.new_empty((), dtype=torch.int64) for _ in range(2))
            rows = None if lse is None else lse.unsqueeze(-1)
            return out, rows, None, None, query.shape[2], key.shape[2], seed, offset, None
    return _stock[CUDNN].call_boxed(  # type: ignore[no-any-return]
        keys, query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal,
        return_debug_mask, scale=scale,
    )  # fmt: skip


def _cudnn_backward(  # noqa: PLR0917  torch's signature
    keys: Any, grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor,
    value: torch.Tensor, out: torch.Tensor, logsumexp: torch.Tensor, philox_seed: torch.Tensor,
    philox_offset: torch.Tensor, attn_bias: torch.Tensor | None, cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
    *, scale: float | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The gradients for `_cudnn`."""
    eligible = (
        attn_bias is None
        and cum_seq_q is None
        and not dropout_p
        and torch._C._get_flash_sdp_enabled()
        and _usual(scale)
        and _chosen(BACKWARD, query, key, value, is_causal, heads=1, rows=2)
    )
    if eligible:
        attention = Attention(*map(_flipped, (query, key, value)), is_causal, _scale(scale, query))
        lse = logsumexp.squeeze(-1).contiguous()
        grads = _gradients(attention, _flipped(grad_out), _flipped(out), lse)
        if grads:
            return tuple(map(_flipped, grads))
    return _stock[CUDNN_BACKWARD].call_boxed(  # type: ignore[no-any-return]
        keys, grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias,
        cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, scale=scale,
    )  # fmt: skip


def _flash(  # noqa: PLR0917  torch's signature
    keys: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    cum_seq_q: torch.Tensor | None, cum_seq_k: torch.Tensor | None, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, return_debug_mask: bool,
    *, scale: float | None = None, window_size_left: int | None = None,
    window_size_right: int | None = None, **others: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Attention by the flash operator: batch, rows, heads, width, or sequences after each other.

    `others` are what some releases of torch have beside. None of it is for FlashAttention-4.
    """
    result = None
    plain = not dropout_p and not return_debug_mask and _usual(scale) and _whole(
        window_size_left, window_size_right, is_causal, others
    )  # fmt: skip
    ragged = _lengths(cum_seq_q, cum_seq_k, max_q, max_k)
    if plain and _chosen(FORWARD, query, key, value, is_causal, heads=-2, rows=1, ragged=ragged):
        attention = Attention(query, key, value, is_causal, _scale(scale, query), ragged)
        if ragged:
            result = _attempt(lambda: fa4.forward_ragged(attention), query.device)
        else:
            out = torch.empty_like(query)
            shape = (query.shape[0], query.shape[2], query.shape[1])
            lse = query.new_empty(shape, dtype=torch.float32)
            if _attempt(lambda: fa4.forward(attention, out, lse), query.device):
                result = out, lse
    if result:
        state = query.new_zeros(2, dtype=torch.uint64)
        return *result, state, state.new_zeros(()), query.new_empty(0)
    return _stock[FLASH].call_boxed(  # type: ignore[no-any-return]
        keys, query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
        return_debug_mask, scale=scale, window_size_left=window_size_left,
        window_size_right=window_size_right, **others,
    )  # fmt: skip


def _flash_backward(  # noqa: PLR0917  torch's signature
    keys: Any, grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor,
    value: torch.Tensor, out: torch.Tensor, logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor | None, cum_seq_k: torch.Tensor | None, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, rng_state: torch.Tensor, unused: torch.Tensor,
    *, scale: float | None = None, window_size_left: int | None = None,
    window_size_right: int | None = None, **others: Any,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The gradients for `_flash`."""
    plain = not dropout_p and _usual(scale) and _whole(
        window_size_left, window_size_right, is_causal, others
    )  # fmt: skip
    ragged = _lengths(cum_seq_q, cum_seq_k, max_q, max_k)
    if plain and _chosen(BACKWARD, query, key, value, is_causal, heads=-2, rows=1, ragged=ragged):
        attention = Attention(query, key, value, is_causal, _scale(scale, query), ragged)
        grads = _gradients(attention, grad_out, out, logsumexp.contiguous())
        if grads:
            return grads
    return _stock[FLASH_BACKWARD].call_boxed(  # type: ignore[no-any-return]
        keys, grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
        dropout_p, is_causal, rng_state, unused, scale=scale, window_size_left=window_size_left,
        window_size_right=window_size_right, **others,
    )  # fmt: skip


KERNELS = {
    CUDNN: _cudnn,
    CUDNN_BACKWARD: _cudnn_backward,
    FLASH: _flash,
    FLASH_BACKWARD: _flash_backward,
}


def _chosen(
    step: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool,
    *, heads: int, rows: int, ragged: Ragged | None = None,
) -> bool:  # fmt: skip
    """Whether FlashAttention-4 can do a step of this attention, and is to do it.

    `heads` and `rows` are dimensions.
    """
    width, device = query.shape[-1], query.device
    if mode == STOCK or fa4.broken() or query.dim() != (RAGGED if ragged else BATCHED):
        return False
    capability = _capabilities.get(device)
    if capability is None:
        capability = _capabilities[device] = torch.cuda.get_device_capability(device)
    if mode == FA4:
        eligible = width in fa4.WIDTHS.get(capability[0], ())
    elif ragged:
        eligible = False  # not measured
    else:
        queries, keys = query.shape[rows], key.shape[rows]
        pairs = query.shape[0] * queries * keys
        count = rules.operations(pairs, query.shape[heads], width, causal=causal)
        shape = rules.Shape(width, causal, min(queries, keys), count)
        eligible = _faster(step, (capability, _cudnn_release()), shape, query, key)
    return bool(
        eligible
        and (_counted(ragged) if ragged else _alike(query, key, rows=rows, causal=causal))
        and query.dtype in HALVES
        and key.dtype == value.dtype == query.dtype
        and key.shape == value.shape
        and key.shape[-1] == width
        and query.shape[heads] % key.shape[heads] == 0
        and query.shape[heads] <= GRID
        and (len(ragged.starts_q) - 1 if ragged else query.shape[0]) <= GRID
        and all(map(_readable, (query, key, value)))
    )


def _faster(
    step: str, on: tuple[tuple[int, int], str], shape: rules.Shape,
    query: torch.Tensor, key: torch.Tensor,
) -> bool:  # fmt: skip
    """Whether FlashAttention-4 is faster at a step of this shape, as it is called now.

    In a CUDA graph it can be where it is not outside, and nothing can be compiled while one is
    captured. So the first call of such a shape on a stream of its own is taken, too: graphs are
    warmed up there.
    """
    if torch.are_deterministic_algorithms_enabled():
        return bool(rules.faster(step, DETERMINISTIC, on, shape))
    usual: bool = rules.faster(step, USUAL, on, shape)
    captured: bool = rules.faster(step, CAPTURED, on, shape)
    if usual == captured:
        return usual
    if torch.cuda.is_current_stream_capturing():
        return captured
    device = query.device
    if usual or torch.cuda.current_stream(device) == torch.cuda.default_stream(device):
        return usual
    call = (step, query.dtype, query.shape, key.shape, query.stride(), key.stride(), device)
    first = call not in _warmed
    if len(_warmed) >= fa4.KEPT:
        _warmed.clear()
    _warmed.add(call)
    return first


def _cudnn_release() -> str:
    """The first two numbers of cuDNN's version, such as "9.19"."""
    if not _cudnn_version:
        number = torch.backends.cudnn.version() or 0
        _cudnn_version.append(f"{number // 10000}.{number // 100 % 100}")
    return _cudnn_version[0]


def _alike(query: torch.Tensor, key: torch.Tensor, *, rows: int, causal: bool) -> bool:
    """Whether batches are alike, and causal means the same to torch and to FlashAttention-4.

    It does not where queries and keys are not equally many. For ragged sequences it does.
    """
    square = query.shape[rows] == key.shape[rows]
    return bool(query.shape[0] == key.shape[0] and (square or not causal))


def _counted(ragged: Ragged) -> bool:
    """Whether sequences are counted in the type that the kernels read."""
    return bool(ragged.starts_q.dtype == ragged.starts_k.dtype == torch.int32)


def _readable(tensor: torch.Tensor) -> bool:
    """Whether the kernels can load a tensor: rows without gaps, at aligned addresses."""
    size = tensor.element_size()
    return bool(
        tensor.stride(-1) == 1
        and 0 < tensor.numel() < INDEXED
        and tensor.data_ptr() % ALIGNED == 0
        and all(step > 0 and step * size % ALIGNED == 0 for step in tensor.stride()[:-1])
    )


def _whole(
    left: int | None, right: int | None, causal: bool, others: dict[str, Any]
) -> bool:  # fmt: skip
    """Whether a window leaves nothing out that the mask does not, and nothing else is asked for."""
    return (
        left in UNBOUND
        and (right in UNBOUND or (causal and right == 0))
        and all(value is None or value is False for value in others.values())
    )


def _lengths(
    starts_q: torch.Tensor | None, starts_k: torch.Tensor | None, longest_q: int, longest_k: int
) -> Ragged | None:
    """Ragged sequences; None for batches."""
    if starts_q is None or starts_k is None:
        return None
    return Ragged(starts_q.contiguous(), starts_k.contiguous(), longest_q, longest_k)


def _usual(scale: float | None) -> bool:
    """Whether a scale leaves the order of the scores as it is; the kernels rely on that."""
    return scale is None or scale > 0


def _scale(scale: float | None, query: torch.Tensor) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _flipped(tensor: torch.Tensor) -> torch.Tensor:
    """A view with rows before heads of a tensor with heads before rows, or the other way round."""
    return tensor.transpose(1, 2)


def _gradients(
    attention: Attention, grad: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The gradients of query, key and value, laid out as these; () where torch's own must do it."""
    dense = torch.contiguous_format
    grad, out = (t if _readable(t) else t.clone(memory_format=dense) for t in (grad, out))
    tensors = (attention.query, attention.key, attention.value)
    grads = tuple(map(torch.empty_like, tensors))
    if not all(map(_readable, grads)):
        return ()

    done = _attempt(
        lambda: fa4.backward(attention, grad=grad, out=out, lse=lse, grads=grads),
        attention.query.device,
    )
    return grads if done else ()


def _attempt(call: Callable[[], T], device: torch.device) -> T | None:
    """What a call of FlashAttention-4 on a device gives; None where it fails, or is not ready.

    torch's own kernel does it then. If memory was full, the next call may succeed.
    """
    if not fa4.ready(waits=not torch.cuda.is_current_stream_capturing()):
        return None
    try:
        with torch.cuda.device(device):
            return call()
    except torch.OutOfMemoryError:
        return None
    except Exception as error:  # noqa: BLE001  whatever it is, torch's own kernel can do it
        fa4.give_up(error)
        return None
