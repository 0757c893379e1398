"""Facts about an image, for people and programs: versions, layers, digests, verification.

Nothing is assumed: verification observed the versions, and sizes are measured on the image.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch_images.build import labels
from torch_images.build.plan import ImagePlan
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace
from torch_images.layers.plan import wheel_groups
from torch_images.locks.image_lock import ImageLock
from torch_images.markdown import table
from torch_images.verify.identify import VerifiedImage

SCHEMA = 4
# The content of a step's layer, by a word of its command. Layers of wheels share one command and
# follow the order of their groups.
_STEPS = {
    "create-venv": "Python environment",
    "compile-wheels": "bytecode of the wheels",
    "install-wheels": "wheels of the variant",
    "install-packages": "Debian packages",
    "install-compat": "NVIDIA's compat libraries",
    "install-devel": "CUDA toolkit and what builds",
    "install-files": "start, profile and commands",
    "describe": "locks and SBOM",
}


def describe(
    image: VerifiedImage,
    engine: Engine,
    document: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    *,
    commit: str,
    references: Sequence[str] = (),
    indexes: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything about a verified image as plain data.

    `document` and `history` are its OCI manifest and the history in its configuration, from the
    engine or registry; `commit` is the project's commit that builds it, "" if unknown;
    `references` are its names in a registry, including those of its indexes; `indexes` are these,
    each by its most specific name with its digest.
    """
    info, spec, lock, report = image.info, image.plan.spec, image.plan.lock, image.report
    layers = _layers(document, history, engine.layer_sizes(info.id), image.plan)
    image_labels = labels.read(info.labels)
    return {
        "schema": SCHEMA,
        "id": spec.id,
        "platform": spec.platform.name,
        "references": list(references),
        "indexes": list(indexes),
        "digest": info.id,
        "config": document["config"]["digest"],
        "created": info.created,
        "version": image_labels.version,
        "commit": commit,
        "lock": image_labels.lock,
        "inputs": image_labels.inputs,
        "compat": image_labels.compat,
        "unlocked": lock.unlocked,
        "versions": {name: report.observed[name] for name in ("cuda", "torch", "triton", "python")},
        "arches": {
            name: report.observed[f"arch {name}"] for name in (a.name for a in spec.architectures)
        },
        "driver": {"native": spec.cuda.driver, "minor-version": spec.cuda.floor},
        "features": list(spec.features),
        "packages": packages(lock),
        "security": sorted(d.name for d in lock.all_debs if d.archive.endswith("-security")),
        "size": {
            "compressed": sum(layer["size"] for layer in layers),
            "unpacked": sum(layer["unpacked"] for layer in layers),
        },
        "layers": layers,
        "verification": {
            **{outcome: report.count(outcome) for outcome in ("passed", "failed", "skipped")},
            "seconds": report.seconds,
            "suite": report.suite,
            "skipped-checks": {c.name: c.message for c in report.checks if c.outcome == "skipped"},
        },
    }


def packages(lock: ImageLock) -> dict[str, dict[str, str]]:
    """The versions of all locked packages, by kind and name. Verification found exactly these."""
    wheels = {w: lock.compiled.get(w.name, w.version) for w in lock.all_wheels}
    return {
        "cuda": {w.name: version for w, version in wheels.items() if w.of_cuda},
        "python": {w.name: version for w, version in wheels.items() if not w.of_cuda},
        "debian": {deb.name: deb.version for deb in lock.all_debs},
    }


def save(sheet: Mapping[str, Any], workspace: Workspace) -> None:
    """Write a datasheet as JSON and Markdown to build/datasheets, named by the image's digest."""
    folder = workspace.output / "datasheets"
    folder.mkdir(parents=True, exist_ok=True)
    name = str(sheet["digest"]).replace(":", "-")
    for text, suffix in ((json.dumps(sheet, indent=2) + "\n", "json"), (markdown(sheet), "md")):
        partial = folder / f".{name}.{suffix}.partial"
        partial.write_text(text)
        os.replace(partial, folder / f"{name}.{suffix}")


def markdown(sheet: Mapping[str, Any]) -> str:
    """A datasheet for a release page, as Markdown."""
    proof, size = sheet["verification"], sheet["size"]
    rows = [
        ("Digest", f"`{sheet['digest']}`"),
        ("Platform", sheet["platform"]),
        *(("Name", f"`{reference}`") for reference in sheet["references"]),
        *(("Index of all platforms", f"`{index}`") for index in sheet["indexes"]),
        *((name.capitalize(), version) for name, version in sheet["versions"].items()),
        *((f"Runs on {arch}", how) for arch, how in sheet["arches"].items()),
        ("Driver", f"{sheet['driver']['native']} or newer"),
        ("Compat libraries", sheet["compat"] or "none"),
        ("Features", ", ".join(sheet["features"])),
        ("Inputs", f"`{sheet['inputs']}`" + (" (unlocked)" if sheet["unlocked"] else "")),
        ("Lock", f"`{sheet['lock']}`"),
        *([("Commit", f"`{sheet['commit']}`")] if sheet["commit"] else []),
        ("To pull", size_text(size["compressed"])),
        ("Unpacked", size_text(size["unpacked"])),
        ("Verified", f"{proof['passed']} checks passed, {proof['skipped']} skipped"),
    ]
    layers = [
        (
            layer["holds"],
            size_text(layer["size"]),
            size_text(layer["unpacked"]),
            f"`{layer['digest']}`",
        )
        for layer in sheet["layers"]
    ]
    lines = [f"# {sheet['id']}", "", *table(["", ""], rows)]
    lines += ["", *table(["Layer", "To pull", "Unpacked", "Digest"], layers)]
    return "\n".join(lines) + "\n"


def _layers(
    document: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    unpacked: Sequence[int],
    plan: ImagePlan,
) -> list[dict[str, Any]]:
    """The layers, the lowest first; `unpacked` has a size for each step, empty ones included."""
    steps = zip(history, unpacked, strict=True)
    full = [(step, size) for step, size in steps if not step.get("empty_layer")]
    groups = wheel_groups(plan.lock)
    # In order: compiled wheels and, on a base that is an image, wheels copied onto it.
    titles = {
        "install-compiled": iter([title for _, title, wheels in groups if not wheels]),
        "COPY ": iter([title for _, title, wheels in groups if wheels]),
    }
    rows: list[dict[str, Any]] = []
    for layer, (step, size) in zip(document["layers"], full, strict=True):
        command = str(step.get("created_by", ""))
        known = [text for word, text in _STEPS.items() if word in command]
        known += [next(titles[word]) for word in titles if word in command]
        # The history of a layer made on the host describes it.
        holds = (*known, command[:60] if rows else "base")[0]
        rows.append(
            {
                "digest": layer["digest"],
                "size": layer["size"],
                "unpacked": size,
                "holds": holds.replace("|", " "),
            }
        )
    return rows


def size_text(count: int) -> str:
    """A size in bytes for people, in decimal units as registries show it."""
    large = 10**9
    return f"{count / 1e9:.2f} GB" if count >= large else f"{count / 1e6:.1f} MB"
