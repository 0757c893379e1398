"""The rows of the table: what is done each time, by us and by the plain build.

A row gives what it measured, by name: seconds, bytes, or both of `measure.Measured`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from benchmarks.builds.lab import Lab
from benchmarks.builds.measure import measuring
from tests.releases import T128, T130
from torch_images.config.parse import load_config

Figures = dict[str, float]
Row = Callable[[Lab], Figures]

RUNTIME = ("--cuda", "13.0", "--arch", "12.0")
BOTH = (
    "--select",
    f"cu128-sm120-torch{T128}-bookworm-runtime,cu130-sm120-torch{T130}-bookworm-runtime",
)
LOCKS = (f"wheel-cu130-torch{T130}-py311", f"wheel-cu128-torch{T128}-py311")


def cold(lab: Lab) -> Figures:
    """CUDA 13.0 from an empty store to an image that starts, with the most disk on the way."""
    figures = _plain(lab, LOCKS[0])
    lab.empty()
    with measuring(lab.disk) as ours:
        [image] = lab.build(*RUNTIME)
    figures |= {"our seconds": ours.seconds, "our disk": ours.disk}
    return figures | {"our bytes": lab.packed(image["digest"]), "unpacked bytes": image["size"]}


def substitutes(lab: Lab) -> Figures:
    """The same as `cold`, with a registry on this machine that has the parent image."""
    figures = _plain(lab, LOCKS[0])
    lab.build(*RUNTIME)
    with lab.registry_with_parents() as namespace:
        lab.empty()
        with measuring(lab.disk) as ours:
            [image] = lab.build(*RUNTIME, "--substitute", namespace)
    if image["layers"]["packed"]:
        raise RuntimeError(f"not all layers were taken: {image['layers']}")
    return figures | {"our seconds": ours.seconds, "our disk": ours.disk}


def both(lab: Lab) -> Figures:
    """Both CUDA versions: by one command, and by two plain builds one after the other."""
    plain = sum(_plain(lab, lock)["plain seconds"] for lock in LOCKS)
    lab.empty()
    with measuring(lab.disk) as ours:
        lab.build(*BOTH)
    return {"our seconds": ours.seconds, "our disk": ours.disk, "plain seconds": plain}


def again(lab: Lab) -> Figures:
    """The same command with nothing changed: build, verification taken over, tags."""
    lab.build(*RUNTIME, verified=True)
    return {"our seconds": _timed(lambda: lab.invoke("build", *RUNTIME, "--compat", "off"))}


def edit(lab: Lab) -> Figures:
    """After an edit of what starts in containers, until the image starts."""
    lab.build(*RUNTIME)
    script = lab.project / "scripts" / "image" / "runtime" / "start.sh"
    before = script.read_text()
    script.write_text(f"{before}# {time.time()}\n")
    seconds = _timed(lambda: lab.build(*RUNTIME))
    script.write_text(before)
    return {"our seconds": seconds}


def variant(lab: Lab) -> Figures:
    """A second image of the same CUDA version: what it adds to the first one."""
    [first] = lab.build(*RUNTIME)
    started = time.monotonic()
    [second] = lab.build(*RUNTIME, "--variant", "devel")
    seconds = time.monotonic() - started
    held, ours = (lab.layers(image["digest"]) for image in (first, second))
    added = sum(size for digest, size in ours.items() if digest not in held)
    return {"our seconds": seconds, "our bytes": added, "whole bytes": sum(ours.values())}


def release(lab: Lab) -> Figures:
    """From each release of torch for CUDA 13.0 to the next: what users pull who have the older one.

    A plain image has the base's layer and one of all wheels, which is another one. It is built for
    the newest release only.
    """
    config = load_config(lab.project / "images.yaml")
    releases = next(cuda.torch for cuda in config.cudas if cuda.version == "13.0")
    images = {}
    for torch in releases:
        [image] = lab.build(*RUNTIME, "--torch", torch)
        images[torch] = lab.layers(image["digest"])
    figures: Figures = {}
    for older, newer in pairwise(releases):
        pulled = {k: size for k, size in images[newer].items() if k not in images[older]}
        figures[f"our {older} to {newer}, bytes"] = sum(pulled.values())
        figures[f"whole {newer}, bytes"] = sum(images[newer].values())
    base = next(iter(images[releases[-1]].values()))
    wheels = lab.packed(lab.build_plain(LOCKS[0])) - base
    return figures | {f"plain {releases[-2]} to {releases[-1]}, bytes": wheels}


def pruned(lab: Lab) -> Figures:
    """Bytes of an image for one architecture alone."""
    [image] = lab.build("--cuda", "13.0", "--arch", "9.0", "--prune")
    return {"our bytes": lab.packed(image["digest"]), "unpacked bytes": image["size"]}


def small(lab: Lab) -> Figures:
    """Bytes of the images with the smallest layers, and how long packing them takes once built."""
    figures = _plain(lab, LOCKS[0])
    lab.build(*RUNTIME)
    with measuring(lab.disk) as ours:
        [image] = lab.build(*RUNTIME, "--compression", "small")
    figures |= {"our seconds": ours.seconds, "our disk": ours.disk}
    figures |= {"our bytes": float(lab.packed(image["digest"]))}
    del figures["plain seconds"], figures["plain disk"]
    [image] = lab.build("--cuda", "13.0", "--arch", "9.0", "--prune", "--compression", "small")
    return figures | {"pruned bytes": lab.packed(image["digest"])}


def commands(lab: Lab) -> Figures:
    """What needs no engine: the median of five, which are too short to be measured once."""
    words: Mapping[str, tuple[str, ...]] = {
        "list seconds": ("--list",),
        "matrix seconds": ("matrix",),
        "render seconds": ("render", f"cu130-sm120-torch{T130}-bookworm-runtime"),
    }
    found = {}
    for name, word in words.items():
        found[name] = statistics.median(_timed(lambda w=word: lab.invoke(*w)) for _ in range(5))  # type: ignore[misc]
    return found


ROWS: dict[str, Row] = {
    "cold": cold,
    "substitutes": substitutes,
    "pruned": pruned,
    "small": small,
    "again": again,
    "edit": edit,
    "variant": variant,
    "commands": commands,
    "both": both,
    "release": release,
}


def rounds(
    lab: Lab, names: tuple[str, ...], count: int, known: Mapping[str, Sequence[Figures]]
) -> Iterator[tuple[str, Figures]]:
    """Measure each row so many times, the rows one after the other within each round.

    `known` is what was measured before, which counts.
    """
    before = {name: len(known.get(name, ())) for name in names}
    for number in range(count):
        lab.plain.clear()
        for name in names:
            if before[name] <= number:
                print(f"round {number + 1} of {count}: {name}", file=sys.stderr)
                yield name, ROWS[name](lab)


def _plain(lab: Lab, lock: str) -> Figures:
    """A plain build from an empty store, once a round: no two of them share anything."""
    if lock not in lab.plain:
        lab.empty()
        with measuring(lab.disk) as plain:
            name = lab.build_plain(lock)
        figures = {"plain seconds": plain.seconds, "plain disk": float(plain.disk)}
        lab.plain[lock] = {**figures, "plain bytes": lab.packed(name)}
    return dict(lab.plain[lock])


def _timed(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started
