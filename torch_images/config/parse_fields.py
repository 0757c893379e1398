"""Fields that several sections of images.yaml have. Each function raises ConfigError."""

from __future__ import annotations

import re

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from torch_images.arch import Capability
from torch_images.config.yaml_nodes import Record, Value
from torch_images.errors import UsageError
from torch_images.platforms import Platform, find

# Single dots and dashes lie between letters and digits.
NAME = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")
LETTERS = 24  # of a name, so that tags, which hold several, stay within Docker's 128
BRANCH = re.compile(r"[1-9][0-9]{2}")
# A trailing "-" tells apt to remove what is before it.
_DEBIAN_PACKAGE = re.compile(r"[a-z0-9](?:[a-z0-9+-]|\.(?![.+-]|$))*[a-z0-9+]")
_STEP = r"(?!\.{1,2}(?:/|$))"  # of a path: neither "." nor ".."
_FOLDER = re.compile(rf"(?:/{_STEP}[A-Za-z0-9._-]+)+")
_BELOW = re.compile(rf"{_STEP}[A-Za-z0-9._-]+(?:/{_STEP}[A-Za-z0-9._-]+)*")
# Where a base, its packages and the image's own files are.
_TAKEN = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys"),
    *("/tmp", "/usr/bin", "/usr/include", "/usr/lib", "/usr/sbin", "/usr/share", "/var"),  # noqa: S108
    *("/usr/local/bin", "/usr/local/lib", "/usr/local/sbin", "/opt/venv", "/opt/cuda-compat"),
)
_URL = re.compile(
    r"(https?)://(?:[A-Za-z0-9]+(?:[.-]+[A-Za-z0-9]+)*)(?::([0-9]+))?"
    rf"(?:/(?:{_STEP}[A-Za-z0-9._~-]+(?:/|$))*)?"
)
_VERSION = re.compile(r"[0-9][0-9a-z.]{0,30}")
MOST_PORTS = 65535
_LONGEST = 200  # letters of a requirement
_REASON = 120  # letters of what the parser of requirements says


def entry_name(key: str, value: Value) -> str:
    """The key of an entry, checked to be a name of at most LETTERS letters."""
    if not NAME.fullmatch(key):
        raise value.error(
            f"'{key}' is not a name", "use lower-case letters and digits, with single '.' and '-'"
        )
    if len(key) > LETTERS:
        raise value.error(f"the name '{key}' is too long", f"give one of at most {LETTERS} letters")
    return key


def capability(value: Value, text: str) -> Capability:
    """A compute capability; `text` is what `value` or its key says."""
    try:
        return Capability.parse(text)
    except ValueError as error:
        raise value.error(str(error)) from None


def platform(value: Value, text: str) -> Platform:
    """A platform; `text` is what `value` or its key says."""
    try:
        return find(text)
    except UsageError as error:
        raise value.error(error.message, error.hint) from None


def port(value: Value) -> int:
    """A TCP port, from 1 to MOST_PORTS."""
    return value.number("a port", 1, MOST_PORTS)


def url(value: Value, *, secure: bool = False) -> str:
    """A URL without user, query and final slash; with `secure`, only an https one."""
    what = "an https URL" if secure else "an http or https URL"
    text = value.matching(_URL, what)
    parts = _URL.fullmatch(text)
    assert parts
    if secure and parts[1] != "https":
        raise value.wrong(f"is not {what}")
    if parts[2] and not 1 <= int(parts[2][:9]) <= MOST_PORTS:
        raise value.wrong("has no port", f"give one from 1 to {MOST_PORTS}")
    return text.rstrip("/")


def folder(value: Value) -> str:
    """An absolute path in an image."""
    return value.matching(_FOLDER, "an absolute path of letters, digits and . _ - without '..'")


def own_folder(value: Value) -> str:
    """An absolute path in an image that does not overlap with folders of the base or of ours."""
    path = folder(value)
    for taken in _TAKEN:
        if overlap(path, taken):
            raise value.wrong(f"is, holds or lies in {taken}", "give one of its own below /opt")
    return path


def overlap(one: str, two: str) -> bool:
    """Whether two absolute paths are the same, or one lies in the other."""
    return f"{one}/".startswith(f"{two}/") or f"{two}/".startswith(f"{one}/")


def below(value: Value, text: str) -> str:
    """A path below a folder; `text` is what `value` or its key says."""
    if not _BELOW.fullmatch(text):
        problem = f"'{text}' is not a path below the folder"
        raise value.error(problem, "use letters, digits and . _ - / without '..'")
    return text


def release(value: Value) -> str:
    """A public version such as "2.11.0", as PEP 440 writes it and a tag can hold it."""
    text = value.text()
    try:
        version = Version(text if len(text) <= LETTERS else "")
    except InvalidVersion:
        raise value.wrong("does not pin a version", "give one exact version like 2.11.0") from None
    if version.local:
        raise value.error(f"'{value.path}' names a local version", f"write {version.public}")
    if not _VERSION.fullmatch(str(version)):
        raise value.wrong("cannot stand in a tag", "give one like 2.11.0")
    return str(version)


def requirement(value: Value) -> str:
    """A requirement such as "numpy>=2": PEP 508 without URL and marker."""
    return _requirement(value)[1]


def _requirement(value: Value) -> tuple[str, str]:
    """The normalised name of a requirement, and its text."""
    text = value.text()
    if len(text) > _LONGEST:
        raise value.wrong(f"is longer than {_LONGEST} letters", "shorten it")
    if ";" in text or "(" in text:
        raise value.wrong("has a marker or parentheses", "every image has one platform: leave them")
    try:
        parsed = Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0][:_REASON]
        raise value.wrong(f"is not a requirement: {reason}") from None
    name = canonicalize_name(parsed.name)
    if parsed.url or name == "torch" or "===" in text or not text.isascii():
        raise value.wrong(
            "is not acceptable here", "name a package of the index; torch is set per CUDA version"
        )
    return name, text


def requirements(value: Value) -> tuple[str, ...]:
    """A list of requirements, each of another package."""
    by_name: dict[str, str] = {}
    for item in value.items():
        name, text = _requirement(item)
        if name in by_name:
            raise item.error(
                f"'{value.path}' names {name} twice, as '{by_name[name]}' and '{text}'",
                "join what is required, like cmake>=3.31,<4",
            )
        by_name[name] = text
    return tuple(by_name.values())


def packages(fields: Record) -> tuple[str, ...]:
    """The names of Debian packages under the key `packages`; () where it is absent."""
    values = fields["packages"].scalars() if "packages" in fields else ()
    return tuple(v.matching(_DEBIAN_PACKAGE, "the name of a Debian package") for v in values)
