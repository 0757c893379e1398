"""How long a pull takes, of images that differ in how they are compressed, at several link speeds.

    python -m benchmarks.builds.pull IMAGE... [--speed MBIT]... [--rounds N]

Each IMAGE of this machine's engine is pushed to a registry on loopback, Debian's docker-registry.
A second engine with a store of its own pulls them in turns, unpacked as `docker pull` does, and
forgets each. Between it and the registry lies a proxy that lets through `--speed` Mbit/s: 100 and
1000, unless others are named. It stands in for a slow link. It adds no latency and loses nothing.
What dockerd and its containerd use of the processors meanwhile, mostly to unpack, is counted, too.
Root, or `sudo -n`, starts the second engine. On the disk, the registry has each image once, and the
engine has room for the largest one, packed and unpacked.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import socketserver
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.builds.measure import ticks
from tests.integration.support import registry, second_engine
from tests.servers import connecting
from torch_images.host.runner import Runner
from torch_images.host.workspace import scratch_room
from torch_images.markdown import table

_CHUNK = 1 << 16
_SPEEDS = (100, 1000)  # Mbit/s
_NAME = "torch-images-benchmark"


@dataclass
class Link:
    """A link that all connections share: `speed` in bytes per second; `passed` are bytes so far."""

    speed: float
    passed: int = 0
    _free: float = 0.0  # when the next byte may pass
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, size: int) -> None:
        """Return when so many bytes have passed."""
        with self._turn:
            self.passed += size
            self._free = max(self._free, time.monotonic()) + size / self.speed
            until = self._free
        time.sleep(max(0.0, until - time.monotonic()))


@contextlib.contextmanager
def slow(upstream: str, link: Link) -> Iterator[str]:
    """The address of a proxy for `upstream` ("host:port") whose answers pass a link."""
    host, _, port = upstream.partition(":")

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, int(port))) as server:
                asked = threading.Thread(target=_copy, args=(self.request, server), daemon=True)
                asked.start()
                _copy(server, self.request, link)
                asked.join()

    with connecting(Handler) as address:
        yield address


def _copy(source: socket.socket, target: socket.socket, link: Link | None = None) -> None:
    """Copy until the source ends, or the target takes no more."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(_CHUNK):
            if link:
                link.wait(len(chunk))
            target.sendall(chunk)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def used(engine: str) -> float:
    """Seconds of processor that an engine of `second_engine` and its containerd have used."""
    folder = Path(engine.removeprefix("unix://")).parent
    pids = (folder / "pid", folder / "exec" / "containerd" / "containerd.pid")
    stats = (Path("/proc", pid.read_text().strip(), "stat").read_text() for pid in pids)
    return sum(map(ticks, stats)) / os.sysconf("SC_CLK_TCK")


def pulled(name: str, engine: str, run: Runner) -> tuple[float, float]:
    """Pull an image and forget it again; seconds of the pull, and of the engine's processors."""
    env = {"DOCKER_HOST": engine}
    started, before = time.monotonic(), used(engine)
    run.run(["docker", "pull", "--quiet", name], env=env)
    seconds = time.monotonic() - started, used(engine) - before
    run.run(["docker", "image", "rm", "--force", name], env=env)
    return seconds


def spread(values: Sequence[float]) -> str:
    """The median, and in brackets the least and the greatest."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.builds.pull",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("images", nargs="+", metavar="IMAGE")
    parser.add_argument("--speed", type=float, action="append", metavar="MBIT")
    parser.add_argument("--rounds", type=int, default=3)
    told, run = parser.parse_args(), Runner()
    rows = []
    with (
        tempfile.TemporaryDirectory(dir=scratch_room(), prefix="torch-images-pull-") as scratch,
        registry(Path(scratch, "registry")) as host,
        second_engine() as engine,
    ):
        names = {image: f"{_NAME}/{number}:pull" for number, image in enumerate(told.images)}
        for image, name in names.items():
            run.run(["docker", "tag", image, f"{host}/{name}"])
            try:
                run.run(["docker", "push", "--quiet", f"{host}/{name}"])
            finally:
                run.run(["docker", "image", "rm", f"{host}/{name}"])
        for speed in told.speed or _SPEEDS:
            link = Link(speed=speed * 1e6 / 8)
            seconds: dict[str, list[tuple[float, float]]] = {image: [] for image in names}
            sizes: dict[str, int] = {}
            with slow(host, link) as address:
                for _ in range(told.rounds):
                    for image, name in names.items():
                        before = link.passed
                        seconds[image].append(pulled(f"{address}/{name}", engine, run))
                        sizes[image] = link.passed - before
            for image, found in seconds.items():
                size = f"{sizes[image] / 1e6:.1f}"
                spreads = [spread(values) for values in zip(*found, strict=True)]
                rows.append((f"{speed:g}", image, size, *spreads))
                print(" ".join(rows[-1]), flush=True)
    head = ["Mbit/s", "Image", "MB through the link", "Seconds", "Seconds of processors"]
    print("\n".join(table(head, rows)))


if __name__ == "__main__":
    main()
