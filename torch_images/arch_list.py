"""Corrects torch's list of compiled architectures after code was removed.

`torch.cuda.get_arch_list()` splits one text in libtorch_python.so, such as "sm_75 sm_80 sm_90".
torch uses it to warn about GPUs that it has no code for, and as the targets of extensions.
Standard library only, because images use this while they are built: see build/standalone.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch_images.arch import Capability

# At least two targets: "sm_90" alone may be another text, and has nothing to remove. A pattern that
# begins with plain bytes is found in a fifteenth of the time that one with a lookbehind takes.
_LIST = re.compile(rb"\0(sm_[0-9]{2,3}(?: (?:sm|compute)_[0-9]{2,3}[af]?)+)(?=\0)")


class ArchListError(Exception):
    """A library does not have exactly one list, or its list has nothing for an architecture."""


def narrowed(data: bytes, arches: Iterable[int]) -> bytes:
    """The library with only those targets in its list that these architectures load.

    `arches` are numbers such as 90. Blanks keep the text's length. Raises ArchListError.
    """
    lists = list(_LIST.finditer(data))
    if len(lists) != 1:
        raise ArchListError(f"it has {len(lists)} lists of architectures, not one")
    [place] = lists
    # Sorted, so that machine code (sm_120) comes after PTX for the same GPU (compute_120).
    targets = {Capability.of_target(word): word for word in sorted(place[1].decode().split())}
    kept = []
    for number in arches:
        own = Capability.of_number(number)
        able = [code for code in targets if code and own.runs(code)]
        if not able:
            raise ArchListError(f"its list, {place[1].decode()}, has nothing that {own} loads")
        kept.append(max(able))
    words = " ".join(targets[code] for code in sorted(set(kept)))
    return data[: place.start(1)] + words.encode().ljust(len(place[1])) + data[place.end(1) :]
