"""The kinds of text in images.yaml, as types of fields."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Annotated

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator

from torch_images.arch import Capability
from torch_images.config.schema import As, Wrong, choice, known, matches, whole_number
from torch_images.platforms import PLATFORMS, Platform, find

COMMIT = re.compile(r"[0-9a-f]{40}")
_LETTERS = 24  # of a name: a tag has several names, and Docker allows it 128
_MOST_PORTS = 65535
_LARGEST = 99_999  # GB
_LONGEST = 200  # characters of a requirement
_REASON = 120  # characters of a message of the parser of requirements
_STEP = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]+"  # of a path: neither "." nor ".."
# The grammar of references, without a digest: https://github.com/distribution/reference
_HOST = r"[A-Za-z0-9]+(?:[.-]+[A-Za-z0-9]+)*"
# Folders of a base, its packages and the image's own files.
_TAKEN = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys"),
    *("/tmp", "/usr/bin", "/usr/include", "/usr/lib", "/usr/sbin", "/usr/share", "/var"),  # noqa: S108
    *("/usr/local/bin", "/usr/local/lib", "/usr/local/sbin", "/opt/venv", "/opt/cuda-compat"),
)


def _short(text: str) -> str:
    if len(text) > _LETTERS:
        raise Wrong("is too long", f"give one of at most {_LETTERS} characters")
    return text


def _port(text: str) -> str:
    """The port of a URL or of a port with its protocol; "" for none."""
    if text and not 1 <= int(text[:9]) <= _MOST_PORTS:
        raise Wrong("has no port", f"give one from 1 to {_MOST_PORTS}")
    return text


def _url(text: str) -> str:
    _port(text.partition("://")[2].partition("/")[0].partition(":")[2])
    return text.rstrip("/")


def _served(text: str) -> str:
    _port(text.partition("/")[0])
    return text


def _own_folder(path: str) -> str:
    for taken in _TAKEN:
        if overlap(path, taken):
            raise Wrong(f"is, contains or is inside {taken}", "give a separate folder below /opt")
    return path


def overlap(one: str, two: str) -> bool:
    """Whether two absolute paths are the same, or one is inside the other."""
    return f"{one}/".startswith(f"{two}/") or f"{two}/".startswith(f"{one}/")


def _capability(text: str) -> Capability:
    try:
        return Capability.parse(text)
    except ValueError:
        raise Wrong("is not a compute capability like 9.0 or 12.0") from None


def _release(text: str) -> str:
    try:
        version = Version(text if len(text) <= _LETTERS else "")
    except InvalidVersion:
        raise Wrong("does not pin a version", "give one exact version like 2.11.0") from None
    if version.local:
        raise Wrong("names a local version", f"write {version.public}")
    if version.epoch:
        raise Wrong("is not valid in a tag", "give one like 2.11.0")
    return str(version)


def _canonical_release(text: str) -> str:
    if _release(text) != text:
        raise Wrong("is not in PEP 440's normal form", f"write {_release(text)}")
    return text


def _ordered(releases: tuple[str, ...]) -> tuple[str, ...]:
    for place, (before, text) in enumerate(itertools.pairwise(releases)):
        if Version(text) <= Version(before):
            raise Wrong(f"does not come after {before}", "list the oldest first", at=(place + 1,))
    return releases


def _wheel_name(text: str) -> str:
    if canonicalize_name(text) != text:
        raise Wrong("is not the name of a wheel", f"write {canonicalize_name(text)}")
    return text


def _requirement_name(text: str) -> str:
    """The normalised name of a requirement: PEP 508 without URL and marker."""
    if len(text) > _LONGEST:
        raise Wrong(f"is longer than {_LONGEST} characters", "shorten it")
    if ";" in text or "(" in text:
        raise Wrong("has a marker or parentheses", "leave them out: every image has one platform")
    try:
        parsed = Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0][:_REASON]
        raise Wrong(f"is not a requirement: {reason}") from None
    name = canonicalize_name(parsed.name)
    if parsed.url or name == "torch" or "===" in text or not text.isascii():
        hint = "name a package of the index; torch is set per CUDA version"
        raise Wrong("is not acceptable here", hint)
    return name


def _requirements(texts: tuple[str, ...]) -> tuple[str, ...]:
    by_name: dict[str, str] = {}
    for place, text in enumerate(texts):
        name = _requirement_name(text)
        if name in by_name:
            hint = "join what is required, like cmake>=3.31,<4"
            raise Wrong(f"names {name} again, after '{by_name[name]}'", hint, at=(place,))
        by_name[name] = text
    return texts


def _judged(judge: Callable[[str], object]) -> AfterValidator:
    """A validator that ignores the result of `judge`."""

    def check(text: str) -> str:
        judge(text)
        return text

    return AfterValidator(check)


_LOWER = r"[a-z0-9]+(?:[.-][a-z0-9]+)*"
Name = Annotated[
    str,
    matches(_LOWER, "a name", "use lower-case letters and digits, with single '.' and '-'"),
    AfterValidator(_short),
]
# Identifiers and tags join these names with "-", and are split there.
PlainName = Annotated[
    str,
    matches(
        r"[a-z][a-z0-9]*(?:\.[a-z0-9]+)*",
        "a name",
        "use lower-case letters, digits and single '.', a letter first; '-' is between names",
    ),
    AfterValidator(_short),
]
Owner = Annotated[str, matches(_LOWER, "a lower-case name")]
Registry = Annotated[
    str, matches(r"[a-z0-9]+(?:[.-]+[a-z0-9]+)*(?::[0-9]{1,5})?", "a registry like ghcr.io")
]
_URL_REST = rf"://{_HOST}(?::[0-9]+)?(?:/(?:(?!\.{{1,2}}(?:/|$))[A-Za-z0-9._~-]+(?:/|$))*)?"
Url = Annotated[str, matches(rf"https?{_URL_REST}", "an http or https URL"), AfterValidator(_url)]
SecureUrl = Annotated[str, matches(f"https{_URL_REST}", "an https URL"), AfterValidator(_url)]
Folder = Annotated[
    str, matches(rf"(?:/{_STEP})+", "an absolute path of letters, digits and . _ - without '..'")
]
OwnFolder = Annotated[Folder, AfterValidator(_own_folder)]
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
WheelName = Annotated[str, AfterValidator(_wheel_name), matches(_LOWER, "the name of a wheel")]
Branch = Annotated[str, matches(r"[1-9][0-9]{2}", "a driver branch like 580")]
CudaVersion = Annotated[str, matches(r"[1-9][0-9]?\.[0-9]", "a CUDA version like 12.8 or 13.0")]
CudaName = Annotated[str, known("cuda")]
Pairs = tuple[tuple[str, str], ...]
Variable = Annotated[str, matches(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a variable")]
# The name of a build option, which becomes a variable of its environment. A check before compiling
# ensures that the tree reads it: scripts/image/source/options.py.
Option = Annotated[
    str,
    matches(r"[A-Za-z][A-Za-z0-9_]{1,99}", "the name of an option", "write one such as USE_NCCL"),
]
Commit = Annotated[str, matches(COMMIT.pattern, "a full commit of 40 hexadecimal digits")]
Served = Annotated[
    str,
    matches(r"[1-9][0-9]{0,4}/(?:http|tcp)", "a port like 22/tcp or 8888/http"),
    AfterValidator(_served),
]
Port = Annotated[int, whole_number("a port", 1, _MOST_PORTS)]
Gigabytes = Annotated[int, whole_number("a number of GB", 1, _LARGEST)]
Arch = Annotated[Capability, As(str, _capability)]
ArchName = Annotated[str, _judged(_capability)]
PlatformName = Annotated[str, choice("a platform", [each.name for each in PLATFORMS])]
HostPlatform = Annotated[Platform, As(PlatformName, find)]
# A public version such as "2.11.0", in PEP 440's normal form and valid in tags.
Pin = Annotated[str, AfterValidator(_release)]
CanonicalPin = Annotated[str, AfterValidator(_canonical_release)]
Pins = Annotated[tuple[Pin, ...], AfterValidator(_ordered)]
_Requirement = Annotated[str, _judged(_requirement_name)]
Requirements = Annotated[tuple[_Requirement, ...], AfterValidator(_requirements)]
