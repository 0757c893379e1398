"""Say which GPUs an image has no code for.

Code is named by its target, such as "sm_90" (machine code) or "compute_120" (PTX), and a GPU by its
compute capability, such as "9.0". It runs at every start, so it imports only fast modules of the
standard library.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Targets with a suffix (sm_90a, sm_100f) are left out: torch has only single kernels for them.
_TARGET = re.compile(r"(sm|compute)_(\d+)(\d)")


@dataclass(frozen=True)
class Code:
    """What an image has code for.

    `targets`: the targets of its torch, () if they are not known.
    `pruned`: the capabilities that it was pruned for, () if it was not pruned.
    `images`: for each capability that has an image of this kind, the name of that image.
    """

    targets: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)

    def unserved(self, gpus: Iterable[tuple[str, str | None]]) -> list[str]:
        """A line for each kind of GPU, given as name and capability, that has no code here.

        It says what the image has code for, and which image to take. A GPU whose capability is not
        known gets no line, and no GPU gets one if the targets are not known.
        """
        return [
            f"this image has no code for {name} ({capability}): {self._reason()}; "
            f"{self._remedy(capability)}"
            for name, capability in dict.fromkeys(gpus)
            if self.targets and capability and not target(self.targets, capability)
        ]

    def _reason(self) -> str:
        if self.pruned:
            return f"it was pruned for {', '.join(self.pruned)}"
        return f"its torch was compiled for {', '.join(self.targets)}"

    def _remedy(self, capability: str) -> str:
        """Where to find code for a GPU: a GPU can also run that of an older capability."""
        names = {f"sm_{one.replace('.', '')}": image for one, image in self.images.items()}
        serving = target(names, capability)
        if serving:
            return f"take {names[serving]}, or an image for all architectures"
        return "`./inv pick` names an image that has some"


def read(told: Mapping[str, Any]) -> Code:
    """What the image's image.json says. It knows the code of pruned images only."""
    return Code(tuple(told.get("code", ())), tuple(told.get("pruned", ())), told.get("images", {}))


def target(targets: Iterable[str], gpu: str) -> str:
    """The target whose code a GPU of this capability loads; "" if it can load none.

    It is the newest machine code of the same major version that is not newer than the GPU, else the
    newest PTX that is not newer. This repeats torch_images/arch.py (coverage), because images do
    not have that file. A unit test compares the two.
    """
    major, minor = map(int, gpu.split("."))
    runs = []
    for name in targets:
        found = _TARGET.fullmatch(name)
        if not found:
            continue
        machine, code = found[1] == "sm", (int(found[2]), int(found[3]))
        if code <= (major, minor) and (code[0] == major or not machine):
            runs.append((machine, code, name))
    return max(runs)[2] if runs else ""


def left(compiled: Sequence[str], pruned: Sequence[str]) -> list[str]:
    """The targets whose code is in an image, in the order of `compiled`.

    `compiled` is what torch was built for. `pruned` are the capabilities that the image was pruned
    for; it is empty for an image that was not pruned. A pruned image has only the code that GPUs of
    these capabilities load. torch does not know about pruning.
    """
    if not pruned:
        return list(compiled)
    kept = {target(compiled, gpu) for gpu in pruned}
    return [name for name in compiled if name in kept]
