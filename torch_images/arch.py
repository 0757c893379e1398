"""CUDA architectures: parsing, and whether given machine code can run on one.

Pure and free of imports outside the standard library: the pipeline uses it to plan, and the tests
that run inside an image use the same file to judge.

Facts (NVIDIA, "CUDA C++ Programming Guide", sections "Binary Compatibility" and "PTX
Compatibility"): machine code for X.y runs on X.z with z >= y and on no other major version; PTX for
X.y is compiled by the driver for anything from X.y on; a target with the suffix `a` runs on exactly
that architecture, one with `f` on its family.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_CAPABILITY = re.compile(r"([1-9][0-9]?)\.([0-9])")
_TARGET = re.compile(r"(?:sm|compute)_([1-9][0-9]{1,2})([af]?)")


@dataclass(frozen=True, order=True)
class Capability:
    """A compute capability, such as 12.0. Orders by major, then minor version."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Capability:
        """Read "12.0". Raises ValueError for anything else, "12", "sm_120" and "12.0a" included."""
        match = _CAPABILITY.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}' is not a compute capability like 9.0 or 12.0")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def of_target(cls, target: str) -> Capability | None:
        """The capability of a plain target such as "sm_120"; None for any other text.

        Targets with a suffix (sm_90a, sm_100f) give None: they hold single kernels, so they never
        prove that an architecture is served.
        """
        match = _TARGET.fullmatch(target)
        if match is None or match[2]:
            return None
        return cls(int(match[1][:-1]), int(match[1][-1]))

    @classmethod
    def named(cls, text: str) -> Capability:
        """Read "12.0" or a plain target's name: "sm_120", "sm120", "120". Raises ValueError."""
        short = re.fullmatch(r"(?:sm|compute)?_?([5-9][0-9]|[1-9][0-9]{2})", text)
        return cls.of_number(int(short[1])) if short else cls.parse(text)

    @classmethod
    def of_number(cls, number: int) -> Capability:
        """The capability that a target's number stands for: 120 is 12.0."""
        return cls(*divmod(number, 10))

    def runs(self, code: Capability) -> bool:
        """Whether a GPU of this capability runs plain machine code for `code`.

        Machine code for X.y runs on X.z where z >= y, and on no other major version. This is the
        one place of that rule; the source is in the docstring of this module.
        """
        return self.major == code.major and self.minor >= code.minor

    @property
    def sm(self) -> str:
        """The name without dot that tags use, such as "sm120"."""
        return f"sm{self.major}{self.minor}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


@dataclass(frozen=True)
class Coverage:
    """How an architecture is served: `kind` (native, same-major, ptx), and by which target."""

    kind: str
    target: str

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


def coverage(wanted: Capability, elf: Iterable[str], ptx: Iterable[str] = ()) -> Coverage | None:
    """The best way in which code serves `wanted`; None if it cannot run there.

    `elf` and `ptx` are target names such as "sm_120" and "compute_120", in any order.
    """
    machine = {Capability.of_target(name): name for name in elf}
    machine.pop(None, None)
    if wanted in machine:
        return Coverage("native", machine[wanted])
    older = [c for c in machine if c and wanted.runs(c)]
    if older:
        return Coverage("same-major", machine[max(older)])
    virtual = {Capability.of_target(name): name for name in ptx}
    runnable = [c for c in virtual if c and c <= wanted]
    if runnable:
        return Coverage("ptx", virtual[max(runnable)])
    return None


def targets_in_listing(listing: str) -> Counter[str]:
    """How often each target occurs in what `cuobjdump --list-elf` or `--list-ptx` printed.

    PTX for X.y is listed as sm_Xy too; the caller knows which it asked for.
    """
    return Counter(re.findall(r"\.(sm_[0-9]{2,3}[af]?)\.(?:cubin|ptx)", listing))


def widespread(found: Counter[str], *, like: Counter[str] | None = None) -> set[str]:
    """The targets that a library has in general: in at least half as many files as the commonest.

    libtorch_cuda.so of torch 2.11.0 holds each of its targets 444 times or more, and a single
    sm_89 kernel, which does not make it run on 8.9. `like` takes the commonest of another listing.
    """
    most = max((found if like is None else found + like).values(), default=0)
    return {name for name, count in found.items() if 2 * count >= most}


def unasked(wanted: Iterable[Capability], found: Counter[str]) -> list[Capability]:
    """What a library has code for that nobody asked for, the oldest first.

    Targets with a suffix count as the plain ones. Single kernels for another minor version are no
    mistake: torch's build adds them, such as FP8 products for 8.9 where 8.6 was asked for.
    """
    asked = set(wanted)
    common = {_plain(name) for name in widespread(found)}
    extra = {_plain(name) for name in found} - asked
    majors = {capability.major for capability in asked}
    return sorted(c for c in extra if c and (c in common or c.major not in majors))


def _plain(target: str) -> Capability | None:
    return Capability.of_target(target.rstrip("af"))
