"""What torch's builder of extensions lacks: C++20 where torch's headers need it, and architectures.

torch 2.14 does not compile as C++17, which flash-attn, causal-conv1d and mamba-ssm ask for.
Packages also list architectures of their own, and nvcc compiles again for each. This changes the
options that torch's builder of extensions gives to g++ and nvcc, and nothing else that compiles.
nvcc refuses two standards, so the option is replaced.
"""

import os
import re
import sys

from _torch_images import switches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OLDER = re.compile(r"((?:--?std=)?(?:c|gnu)\+\+)(?:0x|11|1y|14|1z|17)")
_ARCH = re.compile(r"sm_(\d+)(\d[af]?)")  # in torch's list, such as sm_90 or sm_100a
_ARCHES = "TORCH_CUDA_ARCH_LIST"
_NAMES = ("-std", "--std")  # nvcc takes the standard as a word of its own, too
_CODES = ("-gencode", "--generate-code")  # and architectures
_CODE = re.compile(r"(?:--?gen\w+(?:-code)?=)?arch=compute_(\d+)[af]?,code=\S+")


def change_options(builder: "Any") -> None:
    """Have torch.utils.cpp_extension compile for the chosen architectures alone.

    And as C++20, if it does so where no standard is given.
    """
    write: Any = builder._write_ninja_file
    build: Any = builder.BuildExtension.build_extensions
    default = builder._write_ninja_file_to_build_library.__code__.co_consts
    lifts = "c++20" in repr(default) and switches.is_on(os.environ, switches.CXX20)

    def changed(flags: "Any") -> "Any":
        return chosen(lifted(flags) if lifts else flags)

    def write_ninja_file(*args: "Any", **kwargs: "Any") -> "Any":
        more = {name: changed(value) for name, value in kwargs.items()}
        return write(*map(changed, args), **more)

    def build_extensions(self: "Any") -> "Any":
        compile_one = self.compiler._compile  # without ninja

        def compile_changed(*args: "Any") -> "Any":
            return compile_one(*map(changed, args))

        self.compiler._compile = compile_changed
        return build(self)

    builder._write_ninja_file = write_ninja_file
    builder.BuildExtension.build_extensions = build_extensions


def name_arches(builder: "Any") -> None:
    """Have extensions compiled for torch's own architectures where no GPU says which.

    So it is in `docker build`, and torch ends with an IndexError there.
    """
    flags: Any = builder._get_cuda_arch_flags
    torch: Any = builder.torch

    def arch_flags(*args: "Any", **kwargs: "Any") -> "Any":
        if not os.environ.get(_ARCHES) and not torch.cuda.device_count():
            found = filter(None, map(_ARCH.fullmatch, torch._C._cuda_getArchFlags().split()))
            os.environ[_ARCHES] = ";".join(f"{each[1]}.{each[2]}" for each in found)
            _say(f"no GPU here: compiling for {_ARCHES}={os.environ[_ARCHES]}, set it for others")
        return flags(*args, **kwargs)

    builder._get_cuda_arch_flags = arch_flags


def lifted(flags: "Any") -> "Any":
    """Options of a compiler with C++20 in place of an older standard; anything else unchanged."""
    if not isinstance(flags, list):
        return flags
    new = []
    for at, flag in enumerate(flags):
        match = _OLDER.fullmatch(flag) if isinstance(flag, str) else None
        named = bool(match) and ("=" in flag or (at > 0 and flags[at - 1] in _NAMES))
        new.append(f"{match[1]}20" if match and named else flag)
    if new != flags:
        old = next(old for old, ours in zip(flags, new, strict=True) if old != ours)
        _say(
            f"{old} is C++20 here, because torch's headers need it; {switches.CXX20}=off leaves it"
        )
    return new


def chosen(flags: "Any") -> "Any":
    """Options without code for architectures that TORCH_CUDA_ARCH_LIST leaves out.

    All of a package's stay if it has none of those, and if the variable has names.
    """
    numbers = {
        name.replace(".", "") for name in re.findall(r"\d+\.\d", os.environ.get(_ARCHES, ""))
    }
    if not isinstance(flags, list):
        return flags
    codes = [_CODE.fullmatch(flag) if isinstance(flag, str) else None for flag in flags]
    others = [at for at, code in enumerate(codes) if code and code[1] not in numbers]
    if not others or not any(code and code[1] in numbers for code in codes):
        return flags
    _say(f"{_ARCHES} leaves out {len(others)} of the package's own architectures")
    dropped = {*others, *(at - 1 for at in others if at and flags[at - 1] in _CODES)}
    return [flag for at, flag in enumerate(flags) if at not in dropped]


def _say(text: str) -> None:
    """Say it, and the like, once: each extension has many files."""
    kind = text.split(" ", 1)[1]
    if kind not in _said:
        _said.append(kind)
        print(f"torch-images: {text}", file=sys.stderr)


_said: list[str] = []
