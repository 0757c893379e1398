"""Package indexes besides the main one, and the index of each package. Pure.

The main index has the published wheels of a release for one CUDA version. PyTorch's own index has
them for other versions, and the nightly builds.

A package's name alone decides its index: packages listed for an index come from there, all others
from the main index. A package that only the other index has must be listed too. Otherwise anybody
could register its name in the main index, as happened to torchtriton in December 2022
(https://pytorch.org/blog/compromised-nightly-dependency).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

from torch_images.config.fields import Pins, WheelName
from torch_images.config.schema import FILLED, Section, matches

_STEP = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+"  # of a path: neither "." nor ".."
_HOST = r"[a-z0-9]+(?:[.-]+[a-z0-9]+)*(?::[1-9][0-9]{0,4})?"
# Without user, query and final slash; http only for this machine's loopback.
INDEX = (
    rf"(?:https://{_HOST}|http://(?:localhost|127\.0\.0\.1)(?::[1-9][0-9]{{0,4}})?)(?:/{_STEP})*"
)
_Url = Annotated[
    str,
    AfterValidator(lambda url: url.rstrip("/")),
    matches(
        INDEX,
        "the https URL of an index without user",
        "give one like https://download.pytorch.org/whl/cu128",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Index(Section):
    """A package index (PEP 503) that has releases of torch for a CUDA version.

    `url`: its root without a final slash, such as "https://download.pytorch.org/whl/cu128".
    `packages`: the normalised names of all packages from this index, including torch.
    `torch`: the releases of torch from this index, the oldest first.
    """

    url: _Url
    packages: Annotated[tuple[WheelName, ...], FILLED]
    torch: Annotated[Pins, FILLED]


def origin(name: str, index: Index | None) -> str:
    """The URL of a package's index, by its normalised name; "" for the main one.

    `index` is the index of the image's release of torch, None for the main one.
    """
    return index.url if index and name in index.packages else ""
