"""The name of a GPU as people and programs write it -> its name in images.yaml. Pure.

nvidia-smi writes "NVIDIA A100-SXM4-80GB", vGPU software "GRID A100D-40C", clouds "RTX_6000Ada",
"nvidia-tesla-t4" or "a2-highgpu-1g", people "5090" or "8xH100". images.yaml has the names
themselves; this module knows the forms of these texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from torch_images.arch import Capability
from torch_images.config.types import Config
from torch_images.errors import UsageError, shown, suggest

Words = tuple[str, ...]
# Words of nvidia-smi that are not part of a model's name.
_NOISE = {"nvidia", "geforce", "tesla", "graphics", "device"}
# The UUID that `nvidia-smi -L` prints, whose digits could be read as a model.
_UUID = re.compile(r"gpu-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIMES = "\N{MULTIPLICATION SIGN}"
# The number of GPUs: 8xH100, 2 x A100, H100x8; not the end of TX2.
_COUNT = re.compile(
    r"(?<![a-z0-9])[0-9]{1,2} ?[x*] ?(?=[a-z0-9])"
    r"|(?:(?<=[0-9])|(?<=[0-9][a-z])|(?<= ))[x*] ?[0-9]{1,2}(?![a-z0-9])"
)
# Words attached to a model, before and after its number: RTX4090, RTXPRO6000, 3080Ti.
_BEFORE = (
    re.compile(r"(?<![a-z0-9])(rtx|gtx)(?=(?:a|pro)?[0-9])"),
    re.compile(r"(?<![a-z0-9])(pro)(?=[0-9])"),
)
_AFTER = re.compile(r"(?<=[0-9]{4})(?=(?:ti|super|ada|laptop|d|m)+(?![a-z0-9]))")
# Forms of a model that differ in board or memory only: A100X, V100S, H100XM of vGPU, 8xH100ib.
_FORM = re.compile(r"([a-z]{1,2}[0-9]{1,4})(?:sxm[0-9]?|pcie|nvl|ib|xm|[dglsx])")
# Words before a model that people leave out: A4000 is an RTX A4000.
_BRANDS = {"rtx", "quadro"}
_SM = re.compile(r"(?<![a-z0-9])(?:sm|compute)[_ ]?([1-9][0-9]{1,2})[af]?(?![a-z0-9])")
# A part of a GPU, as `nvidia-smi -L` prints it.
_MIG = re.compile(r"(?<![a-z0-9])(?:[1-7]c\.)?[1-7]g\.[0-9]{1,3}gb")
_DOTTED = re.compile(r"(?:sm|cc|compute capability)?[_ ]?([1-9][0-9]?\.[0-9])[af]?")


def capabilities(config: Config) -> dict[str, Capability]:
    """The compute capability of every GPU that images.yaml names."""
    return {
        **{name: a.capability for a in config.architectures for name in (*a.geforce, *a.gpus)},
        **{name: own for own, names in config.other_gpus for name in names},
    }


def capability(named: str) -> Capability | None:
    """The compute capability that a text names: "8.6", "sm_120", a tag such as "2.14.1-sm120".

    None for a text without one. Raises UsageError for a text with several.
    """
    text = named.strip().lower()
    if dotted := _DOTTED.fullmatch(text):
        return Capability.parse(dotted[1])
    numbers = {Capability.of_number(int(number)) for number in _SM.findall(text)}
    if len(numbers) > 1:
        names = ", ".join(map(str, sorted(numbers)))
        raise UsageError(f"'{shown(named)}' names several architectures: {names}", "give one")
    return numbers.pop() if numbers else None


def find(config: Config, named: str) -> str:
    """The GPU of images.yaml that a name means.

    It is the longest known name whose words are in `named`. If there is none, the number of a model
    is enough, such as "5090". Raises UsageError if it means no GPU, a GPU of another maker, or
    several GPUs that differ in compute capability.
    """
    known = capabilities(config)
    words = _words(named)
    if not {"nvidia", "geforce"}.intersection(re.split(r"[^a-z]+", named.lower())):
        _refuse_other_makers(config, named, words)
    # Older drivers also call an RTX A6000 a Quadro.
    plain = tuple(word for word in words if word != "quadro")
    forms = tuple(form[1] if (form := _FORM.fullmatch(word)) else word for word in plain)
    phrases = _phrases(config)
    for spelling in dict.fromkeys((words, plain, forms)):
        all_of_it = [phrase for phrase in phrases if _within(phrase, spelling)]
        # "a2 highgpu" is not an A2.
        longest = [p for p in all_of_it if not any(p != q and _within(p, q) for q in all_of_it)]
        if longest:
            return _only(named, [phrases[phrase] for phrase in longest], known)
    if fitting := _by_number(set(words), known):
        return _only(named, fitting, known)
    if _MIG.search(named.lower()):
        raise UsageError(
            f"'{shown(named)}' is a part of a GPU (MIG), which does not say of which one",
            "give the name of that GPU, such as H100; `nvidia-smi -L` prints it",
        )
    hint = suggest(" ".join(plain).upper(), known)
    raise UsageError(
        f"unknown GPU '{shown(named)}'",
        f"{hint}; or give its compute capability, such as 8.6",
    )


def _only(named: str, fitting: list[str], known: Mapping[str, Capability]) -> str:
    """The longest of some names. Raises UsageError if they differ in compute capability."""
    if len({known[name] for name in fitting}) > 1:
        names = ", ".join(f"{name} ({known[name]})" for name in fitting)
        raise UsageError(f"'{shown(named)}' names several GPUs: {names}", "give the whole name")
    return max(fitting, key=len)


def _by_number(words: set[str], known: Mapping[str, Capability]) -> list[str]:
    """The known names whose number is among the words, and that share the most words with them."""
    shared = {}
    for name in known:
        own = _words(name)
        if any(word.isdecimal() and word in words for word in own):
            shared[name] = len(words.intersection(own))
    return [name for name, count in shared.items() if count == max(shared.values())]


def _refuse_other_makers(config: Config, named: str, words: Words) -> None:
    """Raise UsageError for a name with a word of another maker, alone or before a number."""
    for maker, theirs in config.other_makers:
        for own in theirs:
            pattern = re.compile(rf"{re.escape(own.lower())}(?:[0-9].*)?")
            if any(pattern.fullmatch(word) for word in words):
                raise UsageError(
                    f"'{shown(named)}' is made by {maker}; these images need an NVIDIA GPU"
                )


@lru_cache(maxsize=4)
def _phrases(config: Config) -> dict[Words, str]:
    """The GPU by the words of each of its names, short names and aliases."""
    names = capabilities(config)
    short = {}
    for name in names:
        rest = tuple(word for word in _words(name) if word not in _BRANDS)
        if rest and not all(word.isdecimal() for word in rest):
            short[rest] = name
    aliases = {_words(a): gpu for gpu, called in config.gpu_aliases for a in called}
    return {**short, **{_words(name): name for name in names}, **aliases}


@lru_cache(maxsize=512)  # called for all names of images.yaml each time
def _words(name: str) -> Words:
    """The words of a GPU's name that tell models apart: "NVIDIA GeForce RTX4090" -> rtx, 4090."""
    text = _COUNT.sub(" ", _UUID.sub(" ", name.lower().replace(_TIMES, "x")))
    for before in _BEFORE:
        text = before.sub(r"\1 ", text)
    words = re.findall(r"[a-z0-9]+", _AFTER.sub(" ", text))
    return tuple(word for word in words if word not in _NOISE)


def _within(short: Words, words: Words) -> bool:
    """Whether words contain others as a contiguous run."""
    count = len(short)
    return any(words[i : i + count] == short for i in range(len(words) - count + 1))
