"""What people and programs call a GPU -> its name in images.yaml. Pure.

nvidia-smi writes "NVIDIA A100-SXM4-80GB", clouds "RTX_6000Ada" or "nvidia-tesla-t4", people "5090".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from torch_images.arch import Capability
from torch_images.errors import UsageError, shown, suggest

# Words of nvidia-smi that name no model.
_NOISE = {"nvidia", "geforce", "tesla", "graphics", "device"}
# What is written together with a model, before and after its number: RTX4090, 3080Ti, 6000Ada.
_BEFORE = re.compile(r"(?<![a-z0-9])(rtx|gtx)(?=a?[0-9])")
_AFTER = re.compile(r"(?<=[0-9]{4})(ti|super|ada|d|m)(?![a-z0-9])")


def find(named: str, known: Mapping[str, Capability]) -> str:
    """The known GPU that a name means, as `known` has it.

    It is the longest known name whose words stand in `named`. If none does, the number of a model
    is enough, such as "5090". Raises UsageError where it means none, or several that differ in
    their compute capability.
    """
    words = _words(named)
    # Older drivers say it of an RTX A6000.
    plain = tuple(word for word in words if word != "quadro")
    for asked in (words, plain):
        fitting = [name for name in known if _within(_words(name), asked)]
        if fitting:
            return max(fitting, key=len)
    fitting = _by_number(set(words), known)
    if not fitting:
        hint = suggest(" ".join(plain).upper(), known)
        raise UsageError(
            f"unknown GPU '{shown(named)}'", f"{hint}; or give its compute capability, such as 8.6"
        )
    if len({known[name] for name in fitting}) > 1:
        names = ", ".join(f"{name} ({known[name]})" for name in fitting)
        raise UsageError(f"'{shown(named)}' names several GPUs: {names}", "give the whole name")
    return fitting[0]


def _by_number(words: set[str], known: Mapping[str, Capability]) -> list[str]:
    """The known names whose number is among the words, of these those with the most of them."""
    shared = {}
    for name in known:
        own = _words(name)
        if any(word.isdecimal() and word in words for word in own):
            shared[name] = len(words.intersection(own))
    return [name for name, count in shared.items() if count == max(shared.values())]


@lru_cache(maxsize=256)  # the names of images.yaml, again for every question
def _words(name: str) -> tuple[str, ...]:
    """The words of a GPU's name that tell models apart: "NVIDIA GeForce RTX4090" -> rtx, 4090."""
    text = _AFTER.sub(r" \1", _BEFORE.sub(r"\1 ", name.lower()))
    return tuple(word for word in re.findall(r"[a-z0-9]+", text) if word not in _NOISE)


def _within(short: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Whether words contain others, side by side."""
    count = len(short)
    return any(words[i : i + count] == short for i in range(len(words) - count + 1))
