"""Facts about a verified image, for people and programs: versions, digests, verification.

Verification observed the versions; the size is measured on the image.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch_images.build import labels
from torch_images.config.image import describe as describe_spec
from torch_images.host import outputs
from torch_images.host.workspace import Workspace
from torch_images.locks.image_lock import ImageLock
from torch_images.markdown import table
from torch_images.verify.identify import VerifiedImage

SCHEMA = 6


def describe(
    image: VerifiedImage,
    *,
    commit: str,
    references: Sequence[str] = (),
    indexes: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything about a verified image as plain data.

    `commit` is the project's commit that builds it, "" if unknown; `references` are its names in a
    registry, including those of its indexes; `indexes` are these, each by its most specific name
    with its digest.
    """
    info, spec, lock, report = image.info, image.plan.spec, image.plan.lock, image.report
    image_labels = labels.read(info.labels)
    return {
        "schema": SCHEMA,
        **describe_spec(spec),
        "references": list(references),
        "indexes": list(indexes),
        "digest": info.id,
        "created": info.created,
        "version": image_labels.version,
        "commit": commit,
        "lock": image_labels.lock,
        "inputs": image_labels.inputs,
        "compat-library": image_labels.compat,
        "unlocked": lock.unlocked,
        "versions": {name: report.observed[name] for name in ("cuda", "torch", "triton", "python")},
        "arches": {
            name: report.observed[f"arch {name}"] for name in (a.name for a in spec.architectures)
        },
        "driver": {"native": spec.cuda.driver, "minor-version": spec.cuda.floor},
        "features": list(spec.features),
        "packages": packages(lock),
        "size": info.size,
        "verification": {
            **{outcome: report.count(outcome) for outcome in ("passed", "failed", "skipped")},
            "seconds": report.seconds,
            "suite": report.suite,
            "skipped-checks": {c.name: c.message for c in report.checks if c.outcome == "skipped"},
        },
    }


def packages(lock: ImageLock) -> dict[str, dict[str, str]]:
    """The versions of all locked packages, by kind and name. Verification checks exactly these."""
    wheels = {w: lock.compiled.get(w.name, w.version) for w in lock.all_wheels}
    return {
        "cuda": {w.name: version for w, version in wheels.items() if w.of_cuda},
        "python": {w.name: version for w, version in wheels.items() if not w.of_cuda},
        "debian": {deb.name: deb.version for deb in lock.all_debs},
    }


def save(sheet: Mapping[str, Any], workspace: Workspace) -> None:
    """Write a datasheet as JSON and Markdown to build/datasheets, named by the image's digest."""
    path = workspace.output / "datasheets" / str(sheet["digest"]).replace(":", "-")
    outputs.write(path.with_suffix(".json"), json.dumps(sheet, indent=2) + "\n")
    outputs.write(path.with_suffix(".md"), markdown(sheet))


def markdown(sheet: Mapping[str, Any]) -> str:
    """A datasheet for a release page, as Markdown."""
    proof = sheet["verification"]
    rows = [
        ("Digest", f"`{sheet['digest']}`"),
        ("Platform", sheet["platform"]),
        *(("Name", f"`{reference}`") for reference in sheet["references"]),
        *(("Index of all platforms", f"`{index}`") for index in sheet["indexes"]),
        *((name.capitalize(), version) for name, version in sheet["versions"].items()),
        *((f"Runs on {arch}", how) for arch, how in sheet["arches"].items()),
        ("Driver", f"{sheet['driver']['native']} or newer"),
        ("Compat library", sheet["compat-library"] or "none"),
        ("Features", ", ".join(sheet["features"])),
        ("Inputs", f"`{sheet['inputs']}`" + (" (unlocked)" if sheet["unlocked"] else "")),
        ("Lock", f"`{sheet['lock']}`"),
        *([("Commit", f"`{sheet['commit']}`")] if sheet["commit"] else []),
        ("Unpacked", f"{sheet['size'] / 1e9:.2f} GB"),
        ("Verified", f"{proof['passed']} checks passed, {proof['skipped']} skipped"),
    ]
    return "\n".join([f"# {sheet['id']}", "", *table(["", ""], rows)]) + "\n"
