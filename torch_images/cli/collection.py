"""All verbs, grouped by purpose, in the order of the workflow."""

from __future__ import annotations

from torch_images.cli import (
    bench_tasks,
    build_tasks,
    lock_tasks,
    maintenance_tasks,
    publish_tasks,
    see_tasks,
    verify_tasks,
)

GROUPS = {
    "See": (see_tasks.matrix, see_tasks.pick, see_tasks.render),
    "Build": (lock_tasks.lock, build_tasks.build, build_tasks.wheels),
    "Verify": (verify_tasks.verify, verify_tasks.reproduce, verify_tasks.sbom),
    "Publish": (publish_tasks.tag, publish_tasks.push, publish_tasks.runpod, publish_tasks.site),
    "Measure": (bench_tasks.bench, bench_tasks.bench_compare),
    "Maintain": (maintenance_tasks.gc, maintenance_tasks.docs, maintenance_tasks.test),
}
VERBS = {verb.name: verb for verbs in GROUPS.values() for verb in verbs}


def listing() -> str:
    """Every verb with the first line of its help."""
    width = max(map(len, VERBS))
    return "\n\n".join(
        "\n".join([f"{title}:", *(f"  {v.name:<{width}}  {v.summary}" for v in verbs)])
        for title, verbs in GROUPS.items()
    )
