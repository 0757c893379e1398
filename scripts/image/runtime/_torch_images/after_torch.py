"""What an image adds to torch when a program imports it: the profile, and attention.

The Python of /opt/venv calls `at_start` when it starts: a .pth file imports this module. `prepare`
runs before torch's own code, `activate` at the end of `import torch`; after torch's ring attention
was imported, `mend_ring` does, and after its builder of extensions `mend_builder`. torch's own
way, an entry point of the group "torch.backends", needs an installed distribution, which `pip
freeze` would name in every image.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False  # typing's own would be imported at each start of Python
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

MATMUL = ("cuda", "matmul")
RING = "torch.distributed.tensor.experimental._context_parallel._attention"
BUILDER = "torch.utils.cpp_extension"
_FINDERS: list[Any] = sys.meta_path


class _Finder:
    """Finds a module of `waiting` as the other finders do; its step runs when it was imported.

    Another finder may ask all the others, too: `asking` has the threads in which this one does.
    """

    def __init__(self) -> None:
        self.asking: set[int] = set()
        self.waiting: dict[str, Callable[[Any], None]] = {
            "torch": activate,
            RING: mend_ring,
            BUILDER: mend_builder,
        }

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> Any:
        if name not in self.waiting or get_ident() in self.asking:
            return None
        self.asking.add(get_ident())
        try:
            finders = [finder for finder in _FINDERS if hasattr(finder, "find_spec")]
            specs = (finder.find_spec(name, path, target) for finder in finders)
            spec: Any = next(filter(None, specs), None)
        finally:
            self.asking.discard(get_ident())
        if hasattr(spec and spec.loader, "exec_module"):  # a folder without code has none
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader:
    """torch's own loader, which may be of any kind, and then the step that waits for the module.

    Nothing is assigned to that loader: one with slots refuses it, and a proxy would call itself.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # `copy` asks a copy for methods before it has any attribute
            raise AttributeError(name)
        return getattr(self.loader, name)

    def exec_module(self, module: ModuleType) -> None:
        spec: Any = module.__spec__
        spec.loader = module.__loader__ = self.loader
        if module.__name__ == "torch":
            prepare()
        self.loader.exec_module(module)
        ours = next((finder for finder in _FINDERS if isinstance(finder, _Finder)), None)
        step = ours.waiting.pop(module.__name__, None) if ours else None
        if step:
            step(module)


def at_start() -> None:
    """Have each step called at the end of its module's import."""
    if not any(isinstance(finder, _Finder) for finder in _FINDERS):  # lib64 is lib once more
        _FINDERS.insert(0, _Finder())


def prepare() -> None:
    """Set the profile's variables, which torch reads while it is imported, or later."""
    try:
        from _torch_images import defaults, switches

        changes, own, lines = defaults.profile(os.environ)
        quiet = switches.is_on(os.environ, switches.QUIET)
        os.environ.update(changes | own)
    except Exception as error:  # noqa: BLE001  torch works without it
        quiet, lines = False, [f"the profile was not applied: {error}"]
    for line in [] if quiet else lines:
        print(f"torch-images: {line}", file=sys.stderr)


def activate(torch: Any) -> None:
    """Turn on TF32, and attention. No failure here may stop `import torch`."""
    try:
        from _torch_images import switches

        # TF32 for float32 products is several times faster on Ampere and newer, and has 10 bits of
        # mantissa instead of 23. PyTorch's default is off. NVIDIA's own PyTorch images set it, too.
        # Who sets torch's own variable has decided.
        if (
            switches.is_on(os.environ, switches.TF32)
            and "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE" not in os.environ
        ):
            prefer_tf32(torch._C)
    except Exception as error:  # noqa: BLE001  torch works without it
        print(f"torch-images: TF32 is off, because it could not be set: {error}", file=sys.stderr)
    try:
        import torch_image_attention
    except Exception:  # noqa: BLE001  most images have none
        return
    torch_image_attention.activate()


def mend_ring(ring: Any) -> None:
    """Give the memory-efficient kernel's backward pass its result in the layout that it assumes.

    For float16 and bfloat16 it reads `out` as rows of (batch, tokens, heads, width), whatever its
    strides. The ring's merged result has another layout, and gradients of query and key are wrong
    by more than their largest value (torch 2.11.0 and 2.14.1).
    """
    real: Any = getattr(ring, "_templated_ring_attention_backward", None)
    if not real:
        return

    def backward(group: Any, seq_dim: int, op: Any, *args: Any, **kwargs: Any) -> Any:
        def with_rows(*args: Any, out: Any, **kwargs: Any) -> Any:
            return op(*args, out=out.transpose(1, 2).contiguous().transpose(1, 2), **kwargs)

        efficient = "_efficient_attention" in str(op)
        return real(group, seq_dim, with_rows if efficient else op, *args, **kwargs)

    ring._templated_ring_attention_backward = backward


def mend_builder(module: Any) -> None:
    """Compile extensions as torch's headers need it. No failure may stop the import."""
    try:
        from _torch_images import builder

        builder.change_options(module)
        builder.name_arches(module)
    except Exception as error:  # noqa: BLE001  torch's own builder serves most extensions
        print(
            f"torch-images: torch's builder of extensions stays as it is: {error}", file=sys.stderr
        )


def prefer_tf32(c: Any) -> None:
    """Use TF32 for CUDA's float32 products until the program itself sets their precision.

    The first call of a setter takes this default back, and then does what it does in any other
    torch: the state is the same from then on. Without that, torch's newer setters would not reach
    the older state (torch.backends.fp32_precision = "ieee" would leave products on TF32), and its
    getters would raise. A program that puts back the "tf32" that it read of the default puts the
    default back. `c` is torch._C, whose functions all setters of torch call.
    """
    real_allow: Any = c._set_cublas_allow_tf32
    precise: Any = getattr(c, "_set_fp32_precision_setter", None)
    ours = True

    def wrap(name: str, chooses: Callable[..., bool]) -> None:
        real = getattr(c, name)

        def setter(*args: Any) -> Any:
            nonlocal ours
            again = args == (*MATMUL, "tf32")
            if ours and again:
                return None
            if ours and chooses(sys._getframe(1), *args):
                ours = False
                allow(on=False)
                precise(*MATMUL, "none")
            result = real(*args)
            if again and not _agree(c):  # as in any other torch, whose older getters then raise
                ours = True
                allow(on=True)
            return result

        setter.__name__ = setter.__qualname__ = name
        setter.__module__, setter.__doc__ = real.__module__, real.__doc__
        setattr(c, name, setter)

    def allow(*, on: bool) -> None:
        with warnings.catch_warnings():  # some releases say, once, that this is the older function
            warnings.simplefilter("ignore")
            real_allow(on)

    import warnings

    if precise:  # torch 2.9 or newer; before, each setter replaces all of the state
        wrap("_set_cublas_allow_tf32", lambda *_: True)
        wrap("_set_float32_matmul_precision", lambda *_: True)
        wrap("_set_fp32_precision_setter", _chooses)
    allow(on=True)  # last, or a failure above would leave it on


def _agree(c: Any) -> bool:
    """Whether torch's older and newer settings of CUDA's products agree: its older getter tells."""
    try:
        c._get_cublas_allow_tf32()
    except RuntimeError:
        return False
    return True


def _chooses(caller: Any, backend: str = "", operator: str = "", precision: str = "") -> bool:
    """Whether a call of the newer setter is a program's choice for CUDA's products.

    It is not if a `flags` context of torch.backends, such as cuDNN's, says "none", which is what it
    says if it is not asked.
    """
    if backend == "mkldnn" or operator in ("conv", "rnn"):
        return False
    return not (caller.f_code.co_name == "set_flags" and precision == "none")
