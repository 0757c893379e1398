"""The images of one release, one for each platform -> their common OCI index. Pure.

The index depends on its images alone, so every machine makes the same bytes.
https://github.com/opencontainers/image-spec/blob/v1.1.0/image-index.md
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from torch_images.publish.tag_rules import Manifest, TagTarget

INDEX = "application/vnd.oci.image.index.v1+json"
_STANDARD = "org.opencontainers.image"


@dataclass(frozen=True, kw_only=True)
class Index:
    """An index: its repository, such as "torch-cu130", most specific floating tag, and manifests.

    `manifests` has one manifest per platform, sorted by the platforms' names.
    """

    repository: str
    version: str
    manifests: tuple[Manifest, ...]

    @property
    def created(self) -> str:
        """The creation time of its oldest image."""
        return min(m.created for m in self.manifests)

    @property
    def annotations(self) -> dict[str, str]:
        """Its annotations, which match the labels of its images."""
        texts = {
            f"{_STANDARD}.created": self.created,
            f"{_STANDARD}.title": self.repository,
            f"{_STANDARD}.version": self.version,
        }
        return {name: text for name, text in texts.items() if text}

    @property
    def descriptors(self) -> tuple[dict[str, Any], ...]:
        """The descriptor of each manifest."""
        return tuple(_descriptor(m) for m in self.manifests)

    @property
    def data(self) -> bytes:
        """Its bytes, as buildx writes them."""
        document = {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": self.descriptors,
            "annotations": self.annotations,
        }
        return json.dumps(document, indent=2).encode()

    @property
    def digest(self) -> str:
        """Its digest; "" if one of its manifests is not in a registry yet."""
        whole = all(m.size for m in self.manifests)
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}" if whole else ""

    @property
    def target(self) -> TagTarget:
        """The index as the target of a tag."""
        return TagTarget(
            digest=self.digest,
            torch=self.manifests[0].labels.torch,
            created=self.created[:10],
            manifests=self.manifests,
        )


def _descriptor(manifest: Manifest) -> dict[str, Any]:
    system, _, architecture = manifest.platform.partition("/")
    return {
        "mediaType": manifest.media_type,
        "digest": manifest.digest,
        "size": manifest.size,
        "platform": {"architecture": architecture, "os": system},
    }
