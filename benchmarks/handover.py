"""How fast an engine takes packed layers: `python -m benchmarks.handover [ROUNDS]`.

Layers go to the engine in steps (torch_images/layers/parent.py): it unpacks those of one step while
the next ones are on their way. This compares steps of three with steps of one, and with one step of
all, in turns, with the layers and the base of the default image from the cache.

Build that image once before, so that nothing is packed here. Then remove it and the build cache,
which would keep its layers: `./inv gc --images --cache`. Each run starts with an engine that has
none of the layers: it removes all parent images, so nothing else may build meanwhile. Each round
begins with another way, and the first run of all is thrown away. It prints seconds, and the ratio
to steps of three.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from concurrent.futures import Future
from pathlib import Path

from torch_images.build.plan import lock_image
from torch_images.config.matrix import choose
from torch_images.config.parse import load_config
from torch_images.fetch.apt import Resolver
from torch_images.fetch.bootstrap import prepare
from torch_images.host.connection import connect
from torch_images.host.engine import Engine
from torch_images.host.network import detect
from torch_images.host.runner import Runner
from torch_images.host.workspace import default_cache
from torch_images.layers import parent
from torch_images.layers.make import making
from torch_images.layers.plan import layer_plans

ROOT = Path(__file__).resolve().parents[1]
STEPS = {"three": 3, "one": 1, "all": 1000}
_FREED = 3_000_000_000  # bytes that the layers take at least, once unpacked


def main() -> None:
    """Measure in turns, and print a line for each way."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else 3
    config, network, cache = load_config(ROOT / "images.yaml"), detect(os.environ), default_cache()
    image = lock_image(config, choose(config), ROOT / "locks")
    engine, run = connect(), Runner()
    resolver = Resolver(root=ROOT, network=network, run=run, engine=engine)
    base = prepare(image.spec.base, image.lock.base, cache=cache, resolver=resolver)
    assert base.layout
    layout: Future[Path] = Future()
    layout.set_result(base.layout)
    plans = layer_plans(config, image.spec, image.lock)
    seconds: dict[str, list[float]] = {name: [] for name in STEPS}
    names = list(STEPS)
    turns = [names[(n + k) % len(names)] for n in range(rounds) for k in range(len(names))]
    for number, way in enumerate([names[0], *turns]):
        parent.STEP = STEPS[way]
        with making([[p for group in plans.values() for p in group]], cache, network) as layers:
            wanted = parent.Wanted(
                groups={name: [layers[p] for p in group] for name, group in plans.items()},
                base=layout,
                compiles=False,
            )
            forget(engine)
            started = time.monotonic()
            parent.ParentImages(cache, engine).contexts({"image": wanted})
            taken = time.monotonic() - started
        if number:
            seconds[way].append(taken)
            print(f"steps of {way}: {taken:.1f} s", flush=True)
    forget(engine)
    usual = statistics.median(seconds["three"])
    for way, measured in seconds.items():
        middle = statistics.median(measured)
        print(f"steps of {way}: median {middle:.1f} s, {middle / usual:.2f} of steps of three")


def forget(engine: Engine) -> None:
    """Remove the parent images of the engine, and wait until their layers are gone."""
    names = engine.tags(f"{parent.PARENT_IMAGES}:")
    root = engine.local_root()
    assert root, "the engine must be this machine's"
    before = shutil.disk_usage(root).free
    for name in names:
        engine.untag(name)
    deadline = time.monotonic() + 120
    while names and shutil.disk_usage(root).free < before + _FREED:
        if time.monotonic() > deadline:
            raise SystemExit("the engine keeps the layers: other images use them; remove those")
        time.sleep(1)


if __name__ == "__main__":
    main()
