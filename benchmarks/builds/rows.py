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
from tests.releases import T130
from torch_images.config.load import load_config

Figures = dict[str, float]
Row = Callable[[Lab], Figures]

RUNTIME = ("--cuda", "13.0", "--arch", "12.0")
WHOLE = ("--cuda", "13.0")


def cold(lab: Lab) -> Figures:
    """README's image from an empty store until it starts, with the most disk on the way."""
    return _side(lab, "plain") | _side(lab, "our")


def whole(lab: Lab) -> Figures:
    """The same for all architectures, as the plain build always is."""
    return _side(lab, "plain") | _side(lab, "whole")


def tuned(lab: Lab) -> Figures:
    """The same, beside a tuned Dockerfile: uv in one step, a cache mount, layers in zstd."""
    return _side(lab, "tuned") | _side(lab, "our")


def user(lab: Lab) -> Figures:
    """What a reader of README waits for, from nothing: set-up, base, build; checks and tags."""
    lab.empty()
    steps: dict[str, Callable[[], object]] = {
        "set-up": lab.set_up,
        "base": lab.new_base,
        "build": lambda: lab.invoke("build", *RUNTIME, "--unverified"),
        "checks": lambda: lab.invoke("build", *RUNTIME),
    }
    return {k: v for name, work in steps.items() for k, v in _timed(work, name).items()}


def again(lab: Lab) -> Figures:
    """The same command with nothing changed: build, verification taken over, tags."""
    lab.build(*RUNTIME, verified=True)
    return _timed(lambda: lab.invoke("build", *RUNTIME))


def edit(lab: Lab) -> Figures:
    """After an edit of what starts in containers, until the image starts."""
    lab.build(*RUNTIME)
    script = lab.project / "scripts" / "image" / "runtime" / "shell.sh"
    before = script.read_text()
    script.write_text(f"{before}# {time.time()}\n")
    figures = _timed(lambda: lab.build(*RUNTIME))
    script.write_text(before)
    return figures


def variant(lab: Lab) -> Figures:
    """A second image of the same CUDA version: what it adds to the first one."""
    [first] = lab.build(*RUNTIME)
    with measuring() as spent:
        [second] = lab.build(*RUNTIME, "--variant", "devel")
    held, ours = (lab.layers(image["digest"]) for image in (first, second))
    added = sum(size for digest, size in ours.items() if digest not in held)
    return spent.figures("our") | {"our bytes": added, "whole bytes": sum(ours.values())}


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
    wheels = lab.packed(lab.build_plain()) - base
    return figures | {f"plain {releases[-2]} to {releases[-1]}, bytes": wheels}


def small(lab: Lab) -> Figures:
    """Bytes of the images with the smallest layers, and how long the first takes from nothing."""
    figures = {"plain bytes": _side(lab, "plain")["plain bytes"]}
    figures |= _ours(lab, (*WHOLE, "--compression", "small"))
    [image] = lab.build(*RUNTIME, "--compression", "small")
    return figures | {"pruned bytes": lab.packed(image["digest"])}


def commands(lab: Lab) -> Figures:
    """What needs no engine: the median of five, which are too short to be measured once."""
    words: Mapping[str, tuple[str, ...]] = {
        "list": ("--list",),
        "matrix": ("matrix",),
        "render": ("render", f"cu130-sm120-torch{T130}-trixie-runtime"),
    }
    figures = {}
    for name, word in words.items():
        spent = []
        for _ in range(5):
            with measuring() as one:
                lab.invoke(*word)
            spent.append(one)
        figures[f"{name} seconds"] = statistics.median(one.seconds for one in spent)
        figures[f"{name} processor seconds"] = statistics.median(one.own for one in spent)
    return figures


# In the order in which they are measured: `user` leaves the image that `again` and `edit` repeat.
ROWS: dict[str, Row] = {
    "cold": cold,
    "whole": whole,
    "tuned": tuned,
    "user": user,
    "again": again,
    "edit": edit,
    "small": small,
    "variant": variant,
    "commands": commands,
    "release": release,
}

# What the figures of each row leave out; docs/performance.md repeats them.
_BUILT = "the base, which both start from, the checks and the tags"
_HELD = "the checks, and the layers or the base that its user holds already"
LEAVES_OUT: dict[str, str] = {
    "cold": _BUILT,
    "whole": _BUILT,
    "tuned": _BUILT,
    "edit": "the checks and the tags",
    "small": "the checks",
    "variant": _HELD,
    "release": _HELD,
    "user": "a Docker Engine and mmdebstrap, which `scripts/setup-engine` installs",
    "again": "the checks, which are taken over for the same digest",
    "commands": "the shell script `./inv` before Python starts, some 0.02 s",
}


def rounds(
    lab: Lab, names: tuple[str, ...], count: int, known: Mapping[str, Sequence[Figures]]
) -> Iterator[tuple[str, Figures]]:
    """Measure each row so many times, the rows one after the other within each round.

    `known` is what was measured before, which counts. The ways to build the same image from nothing
    take turns in being the first of a round.
    """
    before = {name: len(known.get(name, ())) for name in names}
    for number in range(count):
        lab.sides.clear()
        due = [name for name in names if before[name] <= number]
        needed = [side for side in _SIDES if any(side in _NEEDED.get(name, ()) for name in due)]
        first = number % len(needed) if needed else 0
        lab.order[:] = needed[first:] + needed[:first]
        for name in names:
            if name in due:
                print(f"round {number + 1} of {count}: {name}", file=sys.stderr)
                yield name, ROWS[name](lab)


def _dockerfile(lab: Lab, build: Callable[[Lab], str]) -> Figures:
    """A build with a Dockerfile of this folder from an empty store, until the image starts."""
    lab.empty()
    with measuring(lab.disk) as spent:
        name = build(lab)
    return spent.figures("plain") | {"plain disk": spent.disk, "plain bytes": lab.packed(name)}


def _ours(lab: Lab, words: Sequence[str]) -> Figures:
    """Our build from an empty store, until the image starts."""
    lab.empty()
    with measuring(lab.disk) as ours:
        [image] = lab.build(*words)
    sizes = {"our bytes": lab.packed(image["digest"]), "unpacked bytes": image["size"]}
    return ours.figures("our") | {"our disk": ours.disk, **sizes}


# The ways to build the same image from nothing, and the rows that need each.
_SIDES: dict[str, Row] = {
    "plain": lambda lab: _dockerfile(lab, Lab.build_plain),
    "our": lambda lab: _ours(lab, RUNTIME),
    "whole": lambda lab: _ours(lab, WHOLE),
    "tuned": lambda lab: _dockerfile(lab, Lab.build_tuned),
}
_NEEDED = {
    "cold": ("plain", "our"),
    "whole": ("plain", "whole"),
    "tuned": ("tuned", "our"),
    "small": ("plain",),
}


def _side(lab: Lab, name: str) -> Figures:
    """The figures of a way to build; each is measured once a round, in the order of the round."""
    for side in lab.order:
        if side not in lab.sides:
            lab.sides[side] = _SIDES[side](lab)
    return dict(lab.sides[name])


def _timed(work: Callable[[], object], side: str = "our") -> Figures:
    with measuring() as spent:
        work()
    return spent.figures(side)
