"""All verbs, grouped by purpose, in the order of the workflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from torch_images.cli.verb import Verb

# The modules of the verbs. Each is imported when its verb is needed, because all take a second.
GROUPS = {
    "See": {"matrix": "see_tasks", "pick": "see_tasks", "render": "see_tasks"},
    "Your own image": {"init": "own_tasks"},
    "Build": {"lock": "lock_tasks", "build": "build_tasks", "wheels": "build_tasks"},
    "Verify": {"verify": "verify_tasks", "reproduce": "verify_tasks", "sbom": "verify_tasks"},
    "Publish": dict.fromkeys(("tag", "push", "runpod", "site"), "publish_tasks"),
    "Measure": {"bench": "bench_tasks", "bench-compare": "bench_tasks"},
    "Maintain": dict.fromkeys(("gc", "docs", "test"), "maintenance_tasks"),
}
_MODULES = {name: module for verbs in GROUPS.values() for name, module in verbs.items()}


class Verbs(Mapping[str, Verb]):
    """The verbs by name."""

    def __getitem__(self, name: str) -> Verb:
        module = import_module(f"torch_images.cli.{_MODULES[name]}")
        verb: Verb = getattr(module, name.replace("-", "_"))
        return verb

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


VERBS = Verbs()


def listing() -> str:
    """Every verb with the first line of its help."""
    width = max(map(len, VERBS))
    return "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name:<{width}}  {VERBS[name].summary}" for name in names)])
        for title, names in GROUPS.items()
    )
