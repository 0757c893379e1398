"""Edits of images.yaml: the releases of one CUDA version, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from torch_images.errors import ConfigError


def with_releases(text: str, cuda: str, releases: Sequence[str]) -> str:
    """The text of images.yaml with other releases of torch for a CUDA version.

    Only its list `torch` changes; comments and everything else stay. Raises ConfigError if the list
    is missing, or not on one line.
    """
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in ("cuda", cuda, "torch"):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((value for name, value in pairs if name.value == key), None)
    if not isinstance(node, yaml.SequenceNode) or not node.flow_style:
        raise ConfigError(
            f"'cuda.{cuda}.torch' is not a list like [2.13.0, 2.14.1]", "write it on one line"
        )
    listed = f"[{', '.join(releases)}]"
    return f"{text[: node.start_mark.index]}{listed}{text[node.end_mark.index :]}"
