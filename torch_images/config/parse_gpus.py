"""The sections `architectures`, `other-gpus` and `arm64-gpus` of images.yaml."""

from __future__ import annotations

from torch_images.config.parse_fields import capability
from torch_images.config.types import Architecture, OtherGpus
from torch_images.config.yaml_nodes import Record, Value
from torch_images.errors import suggest


def architecture(key: str, value: Value) -> Architecture:
    """An entry of `architectures`. Raises ConfigError."""
    fields = value.record(("family", "gpus"), ("geforce",))
    return Architecture(
        capability=capability(value, key),
        family=fields.text("family"),
        gpus=fields["gpus"].filled().texts(),
        geforce=fields.texts("geforce"),
    )


def load_other_gpus(value: Value) -> tuple[OtherGpus, ...]:
    """The section `other-gpus`. Raises ConfigError."""
    return tuple(
        OtherGpus(capability=capability(names, key), names=names.filled().texts())
        for key, names in value.entries()
    )


def check_gpus(top: Record) -> None:
    """Raise ConfigError for a GPU that is listed twice, or with Arm processors and nowhere else."""
    lists = [
        fields
        for _, entry in top["architectures"].entries()
        for key, fields in entry.entries()
        if key in ("geforce", "gpus")
    ]
    lists += [names for _, names in top["other-gpus"].entries()] if "other-gpus" in top else []
    seen: set[str] = set()
    for gpu in (gpu for names in lists for gpu in names.scalars()):
        if gpu.text() in seen:
            raise gpu.error(f"the GPU '{gpu.text()}' is listed twice", "leave one")
        seen.add(gpu.text())
    for gpu in top["arm64-gpus"].scalars() if "arm64-gpus" in top else ():
        if gpu.text() not in seen:
            raise gpu.wrong("is in no list of GPUs", suggest(gpu.text(), sorted(seen)))
