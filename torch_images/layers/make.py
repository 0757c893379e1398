"""Planned layers of wheels -> files, packed on the host and kept in this user's cache."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, cast

from torch_images.fetch.packageindex import PackageIndex
from torch_images.host.cache import Part, keep, used
from torch_images.host.network import Network
from torch_images.host.scratch import scratch
from torch_images.host.workers import workers
from torch_images.inside.times import EPOCH
from torch_images.interrupts import GRACE
from torch_images.jobs import processors
from torch_images.layers.install import write_tar
from torch_images.layers.plan import LayerPlan
from torch_images.oci.layout import Compressed, Effort, Layer

_DOWNLOADS = 2  # wheels that are fetched while one per processor is packed
# zstd threads for a small layer. Each takes some 100 MB of memory; the largest layers use several,
# others one or two, and several layers are packed at once.
THREADS = 4


_FILES = "files.json"  # in the folder of a layer: the paths of its files


@dataclass(frozen=True, kw_only=True)
class ReadyLayer:
    """A layer in the cache: its line of history, its digests, and its file."""

    title: str
    layer: Layer
    path: Path


@contextlib.contextmanager
def making(
    groups: Iterable[Sequence[LayerPlan]],
    cache: Path,
    network: Network,
    *,
    fresh: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[LayerPlan, Future[ReadyLayer]]]:
    """Make layers in the background: from the cache unless `fresh`, else from their wheels.

    They are packed in parallel, group by group. `say` gets a line after each. A layer's result
    raises LockError, NetworkError, DiskError or BuildError. Finished layers then stay in the cache;
    unfinished ones are cancelled.
    """
    folder = cache / Part.LAYERS
    folder.mkdir(parents=True, exist_ok=True)
    # The largest first: the last layers to finish are small, so no processor idles for long.
    ordered = [p for group in groups for p in sorted(group, key=lambda p: -p.size)]
    plans = list(dict.fromkeys(ordered))
    missing = {p for p in plans if fresh or not (folder / p.key).exists()}
    total, done = sum(p.size for p in missing), 0
    count = processors()
    turn, one, stop = threading.Semaphore(count), threading.Lock(), threading.Event()
    ready = {p: _done(_read(p, folder)) for p in plans if p not in missing}
    if not missing:
        yield ready
        return
    with (
        scratch(folder, ".making-") as half,
        PackageIndex(network) as index,
        workers(count + _DOWNLOADS) as pool,
    ):

        def make(plan: LayerPlan) -> ReadyLayer:
            nonlocal done
            with tempfile.TemporaryDirectory(dir=half) as own:
                new = _make(plan, Path(own), index, turn=turn, count=count, stop=stop)
                with one:
                    if stop.is_set():  # `new` may be half removed
                        raise _StoppedError
                    if fresh:
                        shutil.rmtree(folder / plan.key, ignore_errors=True)
                    keep(new, folder / plan.key)
                    done += plan.size
                    say(f"packed {plan.title}, {done / 1e6:.0f} of {total / 1e6:.0f} MB")
            return _read(plan, folder)

        ours = {p: pool.submit(make, p) for p in plans if p in missing}
        try:
            yield ready | ours
        finally:
            with one:
                stop.set()  # a large layer with --compression small takes minutes
            pool.shutdown(wait=False, cancel_futures=True)
            wait([layer for layer in ours.values() if not layer.cancelled()], GRACE)


def cached(plans: Iterable[LayerPlan], cache: Path) -> dict[str, Layer]:
    """The layers that the cache has, by the key of their plan."""
    folder = cache / Part.LAYERS
    return {p.key: _read(p, folder).layer for p in plans if (folder / p.key).exists()}


def files_of_layers(diff_ids: Collection[str], cache: Path) -> dict[str, tuple[str, ...]]:
    """The paths of the files of layers that the cache has, by diff id.

    A layer that is damaged, or removed meanwhile, counts as absent.
    """
    files = {}
    for path in (cache / Part.LAYERS).glob("*/layer.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            diff_id = json.loads(path.read_bytes())["diff_id"]
            if diff_id in diff_ids:
                files[diff_id] = tuple(json.loads((path.parent / _FILES).read_bytes()))
    return files


def write_layer(
    plan: LayerPlan, wheels: Sequence[Path], target: IO[bytes], threads: int = 1
) -> tuple[Layer, tuple[str, ...]]:
    """Write the layer of a plan, whose wheels are files, to `target`.

    Also returns the paths of its files. `threads` is as in oci/layout.py. The compressor's version
    is locked, so equal wheels give equal bytes. Raises as `write_tar` does.
    """
    sink = Compressed(target, threads, effort=Effort.SMALL if plan.small else Effort.QUICK)
    files = write_tar(
        wheels,
        cast("IO[bytes]", sink),  # it only uses `write` and `tell`
        python=plan.python,
        mtime=EPOCH,
        removals=plan.removals,
        arches=plan.arches,
    )
    return sink.finish(), files


def _make(
    plan: LayerPlan,
    half: Path,
    index: PackageIndex,
    *,
    turn: threading.Semaphore,
    count: int,
    stop: threading.Event,
) -> Path:
    """Make a layer below `half`, with `count` processors. Returns its folder."""
    wheels = [index.fetch(wheel, half) for wheel in plan.wheels]
    new, threads = half / "layer", min(count, THREADS) if plan.small else count
    new.mkdir()
    with turn, (new / "blob").open("wb") as target:
        until = cast("IO[bytes]", _Until(target, stop))
        layer, files = write_layer(plan, wheels, until, threads)
    (new / _FILES).write_text(json.dumps(files))
    (new / "layer.json").write_text(json.dumps(asdict(layer)))
    return new


class _StoppedError(Exception):
    """Another layer failed, or the user interrupted."""


class _Until:
    """A file whose `write` raises once packing is interrupted."""

    def __init__(self, file: IO[bytes], stop: threading.Event) -> None:
        self._file, self._stop = file, stop

    def write(self, data: bytes) -> int:
        if self._stop.is_set():
            raise _StoppedError
        return self._file.write(data)


def _done(layer: ReadyLayer) -> Future[ReadyLayer]:
    ready: Future[ReadyLayer] = Future()
    ready.set_result(layer)
    return ready


def _read(plan: LayerPlan, folder: Path) -> ReadyLayer:
    folder = used(folder / plan.key)
    layer = Layer(**json.loads((folder / "layer.json").read_bytes()))
    return ReadyLayer(title=plan.title, layer=layer, path=folder / "blob")
