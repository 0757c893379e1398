"""The kinds of text in images.yaml, as types of fields."""

from __future__ import annotations

import re
from typing import Annotated

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field

from torch_images.arch import Capability
from torch_images.config.schema import As, Wrong, choice, known, matches
from torch_images.platforms import PLATFORMS, Platform, find

COMMIT = re.compile(r"[0-9a-f]{40}")
_SHORT = r"(?=.{1,24}$)"  # a tag has several names, and Docker allows it 128 characters
_STEP = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]+"  # of a path: neither "." nor ".."
# The grammar of references, without a digest: https://github.com/distribution/reference
_HOST = r"[A-Za-z0-9]+(?:[.-]+[A-Za-z0-9]+)*"


def _capability(text: str) -> Capability:
    try:
        return Capability.parse(text)
    except ValueError:
        raise Wrong("is not a compute capability like 9.0 or 12.0") from None


def _release(text: str) -> str:
    try:
        version = Version(text)
    except InvalidVersion:
        raise Wrong("does not pin a version", "give one exact version like 2.11.0") from None
    if version.local:
        raise Wrong("names a local version", f"write {version.public}")
    return str(version)


def _requirement(text: str) -> str:
    """A requirement: PEP 508 without URL and marker."""
    try:
        parsed = Requirement(text)
    except InvalidRequirement as error:
        raise Wrong(f"is not a requirement: {str(error).splitlines()[0]}") from None
    if parsed.url or parsed.marker or canonicalize_name(parsed.name) == "torch":
        hint = "name a package of the index, without marker; torch is set per CUDA version"
        raise Wrong("is not acceptable here", hint)
    return text


_LOWER = r"[a-z0-9]+(?:[.-][a-z0-9]+)*"
Name = Annotated[
    str,
    matches(
        _SHORT + _LOWER, "a name", "use 24 lower-case letters and digits, with single '.' and '-'"
    ),
]
# Identifiers and tags join these names with "-", and are split there.
PlainName = Annotated[
    str,
    matches(
        _SHORT + r"[a-z][a-z0-9]*(?:\.[a-z0-9]+)*",
        "a name",
        "use 24 lower-case letters, digits and '.', a letter first; '-' is between names",
    ),
]
Owner = Annotated[str, matches(_LOWER, "a lower-case name")]
Registry = Annotated[
    str, matches(r"[a-z0-9]+(?:[.-]+[a-z0-9]+)*(?::[0-9]{1,5})?", "a registry like ghcr.io")
]
_URL_REST = rf"://{_HOST}(?::[0-9]+)?(?:/(?:(?!\.{{1,2}}(?:/|$))[A-Za-z0-9._~-]+(?:/|$))*)?"
_BARE = AfterValidator(lambda url: url.rstrip("/"))
Url = Annotated[str, matches(rf"https?{_URL_REST}", "an http or https URL"), _BARE]
Folder = Annotated[
    str, matches(rf"(?:/{_STEP})+", "an absolute path of letters, digits and . _ - without '..'")
]
Below = Annotated[
    str,
    matches(
        rf"{_STEP}(?:/{_STEP})*",
        "a path below the folder",
        "use letters, digits and . _ - / without '..'",
    ),
]
Glob = Annotated[
    str,
    matches(
        r"(?!(?:.*/)?\.{1,2}(?:/|$))[A-Za-z0-9_*?][A-Za-z0-9._*?/-]*",
        "a path below site-packages, with * and ?",
    ),
]
# With a trailing "-", apt would remove the package.
DebianPackage = Annotated[
    str, matches(r"[a-z0-9](?:[a-z0-9+-]|\.(?![.+-]|$))*[a-z0-9+]", "the name of a Debian package")
]
WheelName = Annotated[
    str, matches(r"[a-z0-9]+(?:-[a-z0-9]+)*", "the normalised name of a wheel, such as sym-py")
]
Branch = Annotated[str, matches(r"[1-9][0-9]{2}", "a driver branch like 580")]
CudaVersion = Annotated[str, matches(r"[1-9][0-9]?\.[0-9]", "a CUDA version like 12.8 or 13.0")]
CudaName = Annotated[str, known("cuda")]
Pairs = tuple[tuple[str, str], ...]
Variable = Annotated[str, matches(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a variable")]
Commit = Annotated[str, matches(COMMIT.pattern, "a full commit of 40 hexadecimal digits")]
Served = Annotated[str, matches(r"[1-9][0-9]{0,4}/(?:http|tcp)", "a port like 22/tcp or 8888/http")]
Port = Annotated[int, Field(ge=1, le=65535)]
Gigabytes = Annotated[int, Field(ge=1)]
Arch = Annotated[Capability, As(str, _capability)]
ArchName = Annotated[str, As(Arch, str)]
PlatformName = Annotated[str, choice("a platform", [each.name for each in PLATFORMS])]
HostPlatform = Annotated[Platform, As(PlatformName, find)]
# A public version such as "2.11.0", in PEP 440's normal form and valid in tags.
Pin = Annotated[str, AfterValidator(_release)]
Pins = tuple[Pin, ...]
Requirements = tuple[Annotated[str, AfterValidator(_requirement)], ...]
