"""The section `removals` of images.yaml: what images go without."""

from __future__ import annotations

import re
from collections.abc import Sequence

from packaging.utils import canonicalize_name

from torch_images.config.parse_fields import NAME, platform
from torch_images.config.types import Cuda, Removal
from torch_images.config.yaml_nodes import Record, Value
from torch_images.errors import suggest

_GLOB = re.compile(r"(?!(?:.*/)?\.{1,2}(?:/|$))[A-Za-z0-9_*?][A-Za-z0-9._*?/-]*")
_KINDS = ("files", "code", "symbols", "lists")


def load_removals(value: Value, cudas: Sequence[Cuda]) -> tuple[Removal, ...]:
    """What images go without, in the order of the file. Raises ConfigError."""
    known = tuple(cuda.version for cuda in cudas)
    fields = value.record((), ("always", "arch"))
    return tuple(
        _removal(member, known, narrowed=key == "arch")
        for key in fields
        for member in fields[key].items()
    )


def _removal(value: Value, known: Sequence[str], *, narrowed: bool) -> Removal:
    fields = value.record(("of", "reason"), (*_KINDS, "cuda", "platform"))
    if not any(kind in fields for kind in _KINDS):
        raise value.error("a removal must name files, code or symbols")
    wheels = _wheel_names(fields)
    changed = [kind for kind in ("code", "symbols") if kind in fields]
    for name in fields["of"].items() if changed else ():
        if name.text().startswith(("nvidia-", "cuda-")):
            raise name.error(
                f"'{changed[0]}' of {name.text()} cannot be removed: NVIDIA's licence forbids "
                "changed copies",
                "leave whole files out, or nothing",
            )
    for version in fields["cuda"].filled().scalars() if "cuda" in fields else ():
        if version.text() not in known:
            raise version.error(
                f"'{version.path}': unknown cuda '{version.text()}'", suggest(version.text(), known)
            )
    named = fields["platform"].filled().scalars() if "platform" in fields else ()
    return Removal(
        cuda=fields.texts("cuda"),
        platforms=tuple(platform(value, value.text()).name for value in named),
        wheels=wheels,
        reason=fields.text("reason"),
        narrowed=narrowed,
        **{kind: _globs(fields, kind) for kind in _KINDS},
    )


def _wheel_names(fields: Record) -> tuple[str, ...]:
    """The names of wheels under `of`. Raises ConfigError for one that is not normalised."""
    for name in fields["of"].filled().scalars():
        if not NAME.fullmatch(canonicalize_name(name.text())):
            raise name.wrong("is not the name of a wheel")
        if canonicalize_name(name.text()) != name.text():
            raise name.error(
                f"'{name.text()}' is not the name of a wheel",
                f"write {canonicalize_name(name.text())}",
            )
    return fields.texts("of")


def _globs(fields: Record, kind: str) -> tuple[str, ...]:
    """The globs under a key; () without it. Raises ConfigError."""
    if kind not in fields:
        return ()
    return tuple(
        v.matching(_GLOB, "a path below site-packages, with * and ?")
        for v in fields[kind].filled().scalars()
    )
