"""Choose this container's libcuda: collect the facts, decide, and try a compat library.

It runs at every start, which is done in half a second where the driver is new enough. Elsewhere
NVML and the trial get the seconds that they need: a choice must not depend on their speed.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import facts
from _torch_images.account import shown
from _torch_images.switches import WORDS

from torch_images.inside import decision
from torch_images.inside.decision import Choice, Host, Library, Probe, Release, Sister

HERE = Path(__file__).resolve().parent
COMPAT_ROOT = "/opt/cuda-compat"  # NVIDIA's container toolkit does not look here
# Seconds for NVML where the driver is new enough, and for NVML and the trial each where it is not.
BUDGET, PATIENCE = 0.38, 10.0


@dataclass(frozen=True)
class Image:
    """This image: its CUDA version, and its compat library, if any.

    `limits`: by compute capability, a line for each of torch's libraries that lacks code for it.
    `drivers`: by compute capability, the oldest driver branch that supports it.
    """

    release: Release
    compat: Library | None
    limits: Mapping[str, Sequence[str]] = field(default_factory=dict)
    drivers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """A choice and the facts behind it; `probe` is None if no trial was needed."""

    image: Image
    host: Host
    mode: str
    choice: Choice
    probe: Probe | None

    @property
    def line(self) -> str:
        """The choice in one line."""
        return decision.sentence(self.choice, self.host, self.image.release, self.image.compat)

    @property
    def limits(self) -> list[str]:
        """What fails on the GPUs, a line for each library that lacks their code."""
        kinds = dict.fromkeys(d.capability or "" for d in self.host.devices or ())
        return [line for kind in kinds for line in self.image.limits.get(kind, ())]


def read_image(root: Path, path: Path = HERE / "image.json") -> Image:
    """Read `path`, the facts that the build has written about this image."""
    data = json.loads(path.read_text())
    listed = data.get("compat")
    sister = listed and Sister(f"{data['repository']}:{listed['tag']}", tuple(listed["branches"]))
    release = Release(data["cuda"], data["driver"], data["floor"], data.get("page", ""), sister)
    compat = facts.find_library(root / COMPAT_ROOT[1:] / release.cuda)
    return Image(release, compat, data.get("limits", {}), data.get("drivers", {}))


def read_mode(environ: Mapping[str, str]) -> tuple[str, str]:
    """The mode in CUDA_COMPAT, and a complaint if its value is not a mode, else ""."""
    value = environ.get("CUDA_COMPAT", "") or decision.AUTO
    word = value.strip().lower()
    if word in WORDS:
        return decision.ON if WORDS[word] else decision.OFF, ""
    if word == decision.AUTO:
        return decision.AUTO, ""
    return decision.AUTO, f"CUDA_COMPAT={shown(value)} is not auto, on or off, and taken as auto"


def decide(root: Path, mode: str, budget: float = BUDGET) -> Decision:
    """The choice for this container. A compat library of the image is tried.

    `budget`: seconds for NVML where the choice does not depend on its answer.
    """
    image = read_image(root)
    # NVML can take seconds if no process keeps the driver awake. It is not asked if the driver is
    # new enough and GPU device files are there.
    native = decision.newer_or_equal(facts.kernel_driver(root), image.release.driver)
    ask = not (native and facts.has_nodes(root)) or mode == decision.ON
    seconds = budget if native and mode != decision.ON else PATIENCE
    detected = facts.gather(root, time.monotonic() + seconds, devices=ask)
    host = _with_drivers(detected, image.drivers)
    choice = decision.choose(host, image.release, image.compat, mode)
    if not choice.tentative:
        return Decision(image, host, mode, choice, None)
    trial = probe(choice.folder, PATIENCE)
    confirmed = decision.confirm(choice, trial, host, image.release)
    return Decision(image, host, mode, confirmed, trial)


def _with_drivers(host: Host, drivers: Mapping[str, str]) -> Host:
    """The host with the oldest driver branch of each of its GPUs."""
    if not host.devices:
        return host
    known = (replace(d, driver=drivers.get(d.capability or "", "")) for d in host.devices)
    return replace(host, devices=tuple(known))


def probe(folder: str, seconds: float) -> Probe:
    """Try the libcuda in `folder` ("": the loader's) in a child process, for `seconds` at most."""
    path = [folder] if folder else []
    path += [p for p in [os.environ.get("LD_LIBRARY_PATH", "")] if p]
    environ = {**os.environ, "LD_LIBRARY_PATH": ":".join(path)}
    command = [sys.executable, "-sES", str(HERE / "probe.py"), folder]
    child = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        text, _ = child.communicate(timeout=max(seconds, 0.0))
        return Probe(*json.loads(text))
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # in an uninterruptible call
            child.wait(facts.ENDS)
        return Probe(None)
    except (TypeError, ValueError):
        return Probe(decision.BROKEN, "", f"the trial ended with status {child.returncode}")
