"""The image of a user's own project: a table of pyproject.toml, or torch-images.toml.

It names an image by the axes of images.yaml, and what the project adds to it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, TypeAdapter, ValidationError

from torch_images.config import fields
from torch_images.config.axes import AXES, WITH, WITHOUT
from torch_images.config.schema import FILLED, NAME, Section, Wrong, choice, first, matches, pairs
from torch_images.errors import ConfigError
from torch_images.platforms import AMD64

FILE, SHARED = "torch-images.toml", "pyproject.toml"
LOCK = "torch-images.lock"
# Folders that images keep for themselves, or that containers mount.
_RESERVED = (
    *("/dev", "/opt/venv", "/proc", "/run", "/sys", "/var/run"),
    *("/usr/local/lib/torch-images", "/usr/share/torch-images"),
)
_STEP = r"(?!\.{1,2}(?:/|$))[^/\0\n]+"
_NAME = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_WORDS = {
    "string_type": 'must be a text in quotes, such as "13.0"',
    "dict_type": "must be a table",
}


def _target(path: str) -> str:
    if any(path == one or path.startswith(f"{one}/") for one in _RESERVED):
        raise Wrong("is a folder that images keep for themselves", "take another one, such as /app")
    return path


_Inside = Annotated[
    str,
    matches(
        rf"\.|{_STEP}(?:/{_STEP})*",
        "a path below the project's folder",
        "give one relative to it, without '..'",
    ),
]
_Target = Annotated[fields.Folder, AfterValidator(_target)]


@dataclass(frozen=True, kw_only=True)
class Own(Section, keys={"root": NAME}):
    """What a user's project adds to an image, and the axes of that image.

    `name`: of the image; it begins with registry and owner where it is pushed, such as
        "ghcr.io/me/my-app".
    `requirements`: the file with the requirements of its Python packages: uv.lock, pylock.toml,
        pyproject.toml for those of the project there, or a file in pip's format; "" for none.
    `extras`, `groups`: those of the project to install too.
    `packages`: names of Debian packages.
    `files`: pairs of a path below the project's folder and the path to copy it to.
    `command`, `folder`, `ports`, `environment`: as for a variant of images.yaml.
    `checks`: the folder with the project's own tests of the image, for pytest; "" for none.
    `homepage`: a URL for the labels of the image.
    `root`: the project's folder.
    The other fields are axes, "" for the default.
    """

    name: Annotated[
        str,
        matches(
            rf"(?=.{{1,200}}$)(?:[a-z0-9.-]+(?::[0-9]+)?/(?:{_NAME}/)*)?{_NAME}",
            "the name of an image",
            "use lower-case letters and digits, such as my-app or ghcr.io/me/my-app",
        ),
    ]
    requirements: _Inside = ""
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    packages: tuple[fields.DebianPackage, ...] = ()
    files: Annotated[fields.Pairs, pairs(_Inside, _Target)] = ()
    command: Annotated[tuple[str, ...], FILLED] = ()
    folder: fields.Folder = ""
    ports: tuple[fields.Port, ...] = ()
    environment: Annotated[fields.Pairs, pairs(fields.Variable, str)] = ()
    checks: _Inside = ""
    homepage: fields.Url = ""
    cuda: str = ""
    torch: str = ""
    arch: tuple[str, ...] = ()
    source: str = ""
    base: str = ""
    variant: str = ""
    compat: Annotated[str, choice("a value of compat", (WITH, WITHOUT))] = ""
    platform: str = ""
    root: Path = Path()

    @property
    def repository(self) -> str:
        """The name without registry and owner."""
        return self.name.rpartition("/")[2]

    @property
    def namespace(self) -> str:
        """Registry and owner; "" if the name has none."""
        return self.name.rpartition("/")[0]

    @property
    def lock(self) -> Path:
        """The file of its lock."""
        return self.root / LOCK

    @property
    def axes(self) -> dict[str, str]:
        """Its values of axes, as `combine` takes them.

        The platform is not this machine's own: the lock is for one, whoever builds it.
        """
        values = {axis: getattr(self, axis) for axis in AXES}
        platform = self.platform or AMD64.name
        return {**values, "arch": ",".join(self.arch), "platform": platform}


@cache
def _adapter() -> TypeAdapter[Own]:
    return TypeAdapter(Own)


def find(folder: Path) -> Path | None:
    """The file of a folder with the table of an image; None without one.

    Raises ConfigError for two of them, and for a pyproject.toml that cannot be read.
    """
    shared, own = folder / SHARED, folder / FILE
    tools = _toml(shared).get("tool") if shared.is_file() else None
    has = isinstance(tools, dict) and "torch-images" in tools
    if has and own.is_file():
        raise ConfigError(
            f"{own} and [tool.torch-images] of {SHARED} exclude each other", "keep one"
        )
    return own if own.is_file() else shared if has else None


def load(file: Path) -> Own:
    """The image that a file of `find` describes. Raises ConfigError."""
    data = _toml(file)
    table = data["tool"]["torch-images"] if file.name == SHARED else data
    if not isinstance(table, dict):
        raise ConfigError(f"{file.name}: 'tool.torch-images' must be a table")
    try:
        own = _adapter().validate_python(table)
    except ValidationError as error:
        path, problem, hint = first(error, _WORDS)
        steps = [str(step) for step in path if step not in ("", "[key]")]
        at = f"'{'.'.join(steps)}'" if steps else "the table"
        raise ConfigError(f"{file.name}: {at} {problem}", hint) from None
    return replace(own, root=file.parent)


def _toml(file: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises ConfigError."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except ValueError as error:  # of tomllib, or not UTF-8
        raise ConfigError(f"{file.name} is not valid TOML: {error}") from None
