"""The section `redistribution` of images.yaml: what a publisher answers for himself."""

from __future__ import annotations

from torch_images.config.parse_removals import globs, wheel_names
from torch_images.config.types import Accepted
from torch_images.config.yaml_nodes import Value


def load_accepted(value: Value) -> tuple[Accepted, ...]:
    """What may be published although no licence lists it. Raises ConfigError."""
    return tuple(_accepted(member) for member in value.record(("accept",))["accept"].items())


def _accepted(value: Value) -> Accepted:
    fields = value.record(("of", "files", "reason"))
    return Accepted(
        packages=wheel_names(fields), files=globs(fields, "files"), reason=fields.text("reason")
    )
