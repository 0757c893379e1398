"""All verbs, grouped by purpose, in the order of the workflow."""

from __future__ import annotations

from collections.abc import Container

from invoke.collection import Collection

from torch_images.cli import (
    bench_tasks,
    build_tasks,
    lock_tasks,
    maintenance_tasks,
    publish_tasks,
    see_tasks,
    verb,
    verify_tasks,
)

GROUPS = {
    "See": (see_tasks.matrix, see_tasks.pick, see_tasks.render),
    "Build": (lock_tasks.lock, build_tasks.build, build_tasks.wheels),
    "Verify": (verify_tasks.verify, verify_tasks.reproduce, verify_tasks.sbom),
    "Publish": (
        *(publish_tasks.tag, publish_tasks.push, publish_tasks.datasheet),
        *(publish_tasks.runpod, publish_tasks.site),
    ),
    "Measure": (bench_tasks.bench, bench_tasks.bench_report, bench_tasks.bench_compare),
    "Maintain": (maintenance_tasks.gc, maintenance_tasks.docs, maintenance_tasks.test),
}
namespace = Collection(*(task for tasks in GROUPS.values() for task in tasks))


def axis_values(options: Container[str]) -> dict[str, str]:
    """The values in images.yaml of each option that is an axis; {} if the file has errors.

    With the default of CUDA version and variant. The others' defaults depend on these two. `compat`
    is a flag.
    """
    from torch_images.config.types import AXES
    from torch_images.errors import TorchImagesError

    axes = [axis for axis in AXES if axis in options and axis != "compat"]
    try:
        config = verb.config() if axes else None
    except TorchImagesError:
        return {}
    defaults = {"cuda": config.defaults.cuda, "variant": config.defaults.variant} if config else {}
    names = {axis: ", ".join(config.names(axis)) for axis in axes if config}
    return {
        axis: f"{known} (default: {defaults[axis]})" if axis in defaults else known
        for axis, known in names.items()
    }
