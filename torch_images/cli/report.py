"""The output of verbs: text for people, plain data for `--json`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch_images.build import bake
from torch_images.build.diskspace import disk_needed
from torch_images.build.job import BuildOptions
from torch_images.build.plan import LockedImage, plan_image
from torch_images.cli.called import as_called
from torch_images.config.types import Config
from torch_images.fetch.update import UNCHANGED, Finding
from torch_images.host.workspace import Workspace
from torch_images.maintain.gc import Item
from torch_images.pipeline.make import Made
from torch_images.platforms import native
from torch_images.publish import tag, tag_rules
from torch_images.publish.tag_rules import Move
from torch_images.verify.reproduce import IDENTICAL, SAME_CONTENT, Verdict
from torch_images.verify.verify import VerifyReport


def planned(
    config: Config,
    images: Sequence[LockedImage],
    options: BuildOptions,
    workspace: Workspace,
) -> dict[str, Any]:
    """What a build would do, as plain data."""
    images = [replace(image, small=options.small) for image in images]
    command = bake.bake_command((workspace.output / f"{bake.FOLDERS}XXXXXX" / bake.FILE,), options)
    return {
        "images": [
            {
                "id": image.spec.id,
                "torch": image.spec.torch,
                "lock": f"sha256:{image.lock.digest}",
                "compat": image.lock.compat_version or None,
                "tags": list(tag.tags(config, plan_image(config, image, workspace.root))),
                "compiles": compiling(image),
            }
            for image in images
        ],
        "compression": options.compression,
        "disk": disk_needed(config, images),
        "command": command,
    }


def plan(planned: dict[str, Any]) -> str:
    """What a build would do, from `planned`."""
    lines = []
    for image in planned["images"]:
        lines += [
            f"would build {image['id']}",
            f"  torch {image['torch']}, lock {image['lock'][7:19]}",
            f"  compat {image['compat'] or 'none'}",
            f"  tags: {', '.join(image['tags'])}",
            *(f"  {line}" for line in image["compiles"]),
        ]
    lines.append(f"  disk: about {planned['disk'] / 1e9:.0f} GB from nothing")
    return "\n".join([*lines, f"  {shlex.join(planned['command'])}"])


def compiling(image: LockedImage) -> list[str]:
    """Lines about what is compiled for an image; none for published wheels."""
    lock, spec = image.lock, image.spec
    if not lock.sources:
        return []
    features = f", with {' '.join(spec.features)}" if lock.trees else ""
    return [
        *(
            f"compiles {tree.name} {lock.compiled[tree.name]} from {tree.repository} at "
            f"{tree.commit}"
            for tree in reversed(lock.trees)
        ),
        *(f"compiles {sdist.name} {sdist.version} from {sdist.filename}" for sdist in lock.sdists),
        f"for {';'.join(spec.arches)}{features}",
        f"time: see docs/{'compile' if lock.trees else 'extensions'}.md",
    ]


def outcome(made: Made) -> dict[str, Any]:
    """A finished build as plain data."""
    result, proof, lock = made.result, made.report, made.result.plan.lock
    shown: dict[str, Any] = {}
    if proof:
        counts = {o: proof.count(o) for o in ("passed", "failed", "skipped")}
        shown = {"observed": dict(proof.observed), "checks": counts}
    return {
        "id": result.plan.spec.id,
        "platform": result.plan.spec.platform.name,
        "digest": result.digest,
        "lock": f"sha256:{lock.digest}",
        "unlocked": lock.unlocked,
        "own": result.plan.spec.own is not None,
        "compat": lock.compat_version or None,
        "size": result.size,
        "seconds": {
            "build": round(result.seconds, 1),
            "verify": proof.seconds if proof else None,
            "verify_processor": proof.processor_seconds if proof else None,
        },
        "tags": list(made.tags),
        **shown,
    }


def built(done: dict[str, Any]) -> str:
    """A finished build, from `outcome`."""
    seconds = done["seconds"]
    lines = [
        f"\n{done['id']}",
        f"  digest    {done['digest']}",
        f"  lock      {done['lock']}" + (" (unlocked)" if done["unlocked"] else ""),
        f"  compat    {done['compat'] or 'none'}",
        f"  size      {done['size'] / 1e9:.2f} GB unpacked",
    ]
    if "checks" not in done:
        return "\n".join([*lines, f"  time      {seconds['build']} s to build; not verified"])
    lines += [
        f"  time      {seconds['build']} s to build, {seconds['verify']} s to verify",
        f"            {seconds['verify_processor']} s of processor to verify",
        f"  verified  {done['checks']['passed']} checks passed",
        *(f"            {name}: {value}" for name, value in done["observed"].items()),
        "  tags      " + "\n            ".join(done["tags"]),
    ]
    command = ' python -c "import torch; print(torch.__version__, torch.version.cuda)"'
    foreign = "" if done["platform"] == native().name else f"--platform {done['platform']} "
    command = "" if done["own"] else command
    lines.append(f"  next      docker run --rm --gpus all {foreign}{done['tags'][-1]}{command}")
    return "\n".join(lines)


def moves(listed: Sequence[Move], *, done: bool) -> str:
    """A line for each tag: what was done, or would be done."""
    words = {
        tag_rules.NEW: ("tagged", "would tag"),
        tag_rules.MOVES: ("moved", "would move"),
        tag_rules.THERE: ("already", "already"),
        tag_rules.STAYS: ("left", "would leave"),
    }
    lines = []
    for move in listed:
        word = words[move.state][0 if done else 1]
        more = f" from {move.current}" if move.state == tag_rules.MOVES else ""
        lines.append(
            f"{word:<11} {move.reference}{more}" + (f": {move.reason}" * bool(move.reason))
        )
    return as_called("\n".join(lines))


def verified(proof: VerifyReport) -> str:
    """A passing verification: observed values, and why checks were skipped."""
    times = f"{proof.seconds} s, {proof.processor_seconds} s of processor"
    lines = [f"{proof.id}: {proof.count('passed')} checks passed in {times}"]
    if proof.emulated:
        lines[0] += ", in an emulator"
    lines += [f"  {name}: {value}" for name, value in proof.observed.items()]
    reasons = Counter(c.message.partition("Skipped: ")[2] or c.message for c in proof.skipped)
    lines += [f"  skipped {count}: {reason}" for reason, count in reasons.items()]
    return "\n".join(lines)


def changed_images(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """A line for each image of the catalogue that new locks change, from `plan.identities`."""
    return [
        f"{image}: {'changes' if image in after else 'leaves the catalogue'}"
        for image in before
        if after.get(image) != before[image]
    ]


def findings(listed: Sequence[Finding]) -> str:
    """The state of locked inputs: counts for each lock, and a line for each input that changed."""
    lines = []
    for lock in dict.fromkeys(finding.lock for finding in listed):
        ours = [finding for finding in listed if finding.lock == lock]
        counts = Counter(finding.state for finding in ours)
        lines.append(f"{lock}: " + ", ".join(f"{n} {state}" for state, n in counts.items()))
        lines += [
            f"  {f.state:<9} {f.name} {f.version} {f.detail}".rstrip()
            for f in ours
            if f.state != UNCHANGED or f.detail
        ]
    return as_called("\n".join(lines))


def verdict(result: Verdict) -> str:
    """The outcome of a rebuild, fit for a release note."""
    words = {
        IDENTICAL: "is reproducible: a rebuild from nothing has the same digest",
        SAME_CONTENT: "is reproducible: a rebuild from nothing has the same content, compressed "
        "differently",
    }
    lock = ", resolved by a build, stored in the image" if result.unlocked else ""
    lines = [
        f"{result.image} {words.get(result.outcome, 'is NOT reproducible: a rebuild differs')}",
        f"  image     {result.manifests[0]}",
        f"  rebuilt   {result.manifests[1]} in {result.seconds} s",
        f"  commit    {result.commit or 'this checkout'}",
        f"  lock      {result.lock} of {result.lock_date}{lock}",
    ]
    shown = 40
    lines += [
        f"  differs   {f'layer {d.layer}' if d.layer else 'configuration'}: {d.path or 'all of it'}"
        for d in result.differences[:shown]
    ]
    if len(result.differences) > shown:
        lines.append(f"  and {len(result.differences) - shown} more; --json lists them all")
    return "\n".join(lines)


def collected(item: Item, *, done: bool) -> str:
    """A line about an item that was removed, or would be."""
    word = "removed" if done else "would remove"
    used = "named" if item.image else "created" if item.container else "used"
    return f"{word} {item.name}, {item.size / 1e6:.1f} MB, {used} {item.used:%Y-%m-%d %H:%M}"


def collection(
    items: Sequence[Item], left: Sequence[str], freed: str, *, done: bool
) -> dict[str, Any]:
    """Removed items as plain data; `left` lists images that could not be removed, and why."""
    return {
        "done": done,
        "items": [
            {"name": i.name, "bytes": i.size, "used": i.used.isoformat(timespec="seconds")}
            for i in items
        ],
        "left": list(left),
        "build_cache": freed,
    }
