"""Layers, and whole parent images, from a repository in a registry instead of packing them.

The repository need not be trusted: what it sends must have the digests of locks/layers.txt. The
first thing that it does wrong ends its use for this build, with one line; what it did not give is
packed as usual.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

from torch_images.errors import NetworkError, TorchImagesError
from torch_images.fetch.blobs import Blobs, LoginError, OtherBlobError
from torch_images.fetch.stalls import PATIENCE, Stall
from torch_images.host.engine import Engine
from torch_images.host.network import Network
from torch_images.layers.known import KnownParent, layer_of, worth_fetching
from torch_images.layers.parent import parent_name
from torch_images.layers.plan import LayerPlan
from torch_images.locks.layers import Record
from torch_images.oci.layout import Layer

_log = logging.getLogger(__name__)
_LOADING = ("Downloading", "Pulling fs layer", "Waiting")
_CHUNK = 1 << 20


class Substitutes:
    """A repository such as "ghcr.io/me/torch-cu130", and the record. For several threads.

    `taken` are the keys of layers that it gave. `patience`: seconds in which 1 MiB must come.
    """

    def __init__(
        self, repository: str, record: Record, network: Network, *, patience: float = PATIENCE
    ) -> None:
        self.repository, self.taken = repository, set[str]()
        self._record, self._patience = record, patience
        self._blobs = Blobs(repository, network, patience=patience)
        self._over = False
        self._lock = threading.Lock()

    def pull(self, parents: Sequence[KnownParent], engine: Engine) -> bool:
        """Let the engine pull parent images, all or none, under the names that builds know.

        False where the repository does not have them, or was given up; then nothing has a name
        that had none before, but for parent images that are whole.
        """
        if self._over:
            return False
        digests = [parent.image.digest for parent in parents]
        try:
            with contextlib.suppress(LoginError):  # the engine may have one
                if not all(map(self._blobs.has_manifest, digests)):
                    return False
            for parent in parents:
                self._pull(parent, engine)
        except TorchImagesError as error:
            self._give_up(error.message)
            return False
        self.taken |= {layer.key for parent in parents for layer in parent.layers}
        return True

    def fetch(self, plan: LayerPlan, target: Path) -> Layer | None:
        """Write the blob of a layer to `target`; None where it is to be packed instead.

        Raises DiskError.
        """
        held = self._record.get(plan.key)
        if held is None or self._over or not worth_fetching(held, plan):
            return None
        try:
            if not self._blobs.save(held.digest, held.size, target):
                return None
            if _unpacked(target) != held.diff_id:
                raise OtherBlobError(f"locks/layers.txt is wrong about the content of {plan.title}")
        except NetworkError as error:
            self._give_up(error.message)
            return None
        self.taken.add(plan.key)
        return layer_of(held)

    def _pull(self, parent: KnownParent, engine: Engine) -> None:
        """Pull one parent image. Raises NetworkError and what else an engine says."""
        name, digest = parent_name(parent.image), parent.image.digest
        reference = f"{self.repository}@{digest}"
        engine.pull(reference, _Follow(self._patience))
        if engine.digest(reference) != digest:
            raise NetworkError("the engine pulled another image than was asked for")
        engine.tag(reference, *name.rsplit(":", 1))
        engine.untag(reference)

    def _give_up(self, reason: str) -> None:
        """Ask the repository for nothing more, and say so once."""
        with self._lock:
            if not self._over:
                _log.warning("%s: %s; the rest is packed here", self.repository, reason)
            self._over = True


class _Follow:
    """Follows the events of a pull. Raises NetworkError where it does not get on."""

    def __init__(self, patience: float) -> None:
        self._stall = Stall(patience)
        self._came: dict[str, int] = {}
        self._loading: set[str] = set()

    def __call__(self, event: Mapping[str, Any]) -> None:
        layer, status = str(event.get("id", "")), str(event.get("status", ""))
        if status == "Downloading":
            self._came[layer] = int((event.get("progressDetail") or {}).get("current", 0))
        if status in _LOADING:
            self._loading.add(layer)
        else:
            self._loading.discard(layer)
        total = sum(self._came.values())
        if self._loading:
            self._stall.seen(total)
        else:  # what is there is unpacked now, which may take minutes
            self._stall.rest(total)


def _unpacked(blob: Path) -> str:
    """The digest of the tar in a blob; "" if there is none."""
    found = hashlib.sha256()
    try:
        with blob.open("rb") as stream, zstandard.ZstdDecompressor().stream_reader(stream) as tar:
            while data := tar.read(_CHUNK):
                found.update(data)
    except zstandard.ZstdError:
        return ""
    return f"sha256:{found.hexdigest()}"
