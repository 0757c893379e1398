"""Choose this container's libcuda and make the choice effective: `cuda_runtime.py [--say]`.

It prints `export` lines, which the shell that starts the container's command evaluates. They also
have the variables that the user id lacks (account.py). With --say and without TORCH_IMAGE_QUIET, it
says on standard error what was chosen and why, and what only a mount option can repair. It runs at
every start, so it ends within half a second. Whatever goes wrong, the command starts.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import account
import decision
import effect
import facts
from decision import Choice, Host, Library, Probe, Release

HERE = Path(__file__).resolve().parent
COMPAT_ROOT = "/opt/cuda-compat"  # NVIDIA's container toolkit does not look here
BUDGET = (
    0.38  # seconds for facts and probe; Python's start and the loader's cache take the rest of 0.5
)


@dataclass(frozen=True)
class Image:
    """This image: its release, the project's other releases, and its compat library, if any.

    `limits`: by compute capability, a line for each of torch's libraries that lacks code for it.
    """

    release: Release
    others: tuple[Release, ...]
    compat: Library | None
    limits: Mapping[str, Sequence[str]] = field(default_factory=dict)


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
    told = json.loads(path.read_text())
    releases = [Release(**release) for release in told["releases"]]
    [own] = [release for release in releases if release.cuda == told["cuda"]]
    compat = facts.find_library(root / COMPAT_ROOT[1:] / own.cuda)
    others = tuple(r for r in releases if r is not own)
    return Image(own, others, compat, told.get("limits", {}))


def read_mode(environ: Mapping[str, str]) -> tuple[str, str]:
    """The mode in CUDA_COMPAT, and a complaint if its value is not a mode, else ""."""
    asked = environ.get("CUDA_COMPAT", "") or decision.AUTO
    if asked.lower() in decision.MODES:
        return asked.lower(), ""
    return decision.AUTO, f"CUDA_COMPAT={asked} is not auto, on or off, and taken as auto"


def decide(root: Path, mode: str, seconds: float) -> Decision:
    """The choice for this container, within `seconds`. A compat library of the image is tried."""
    deadline = time.monotonic() + seconds
    image = read_image(root)
    # NVML can take seconds if no process keeps the driver awake. It is not asked if the driver is
    # new enough and GPU device files are there.
    native = decision.newer_or_equal(facts.kernel_driver(root), image.release.driver)
    ask = not (native and facts.has_nodes(root)) or mode == decision.ON
    host = facts.gather(root, deadline, devices=ask)
    choice = decision.choose(host, image.release, image.compat, image.others, mode)
    if not choice.tentative:
        return Decision(image, host, mode, choice, None)
    found = probe(choice.folder, deadline - time.monotonic())
    confirmed = decision.confirm(choice, found, host, image.release, image.others)
    return Decision(image, host, mode, confirmed, found)


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
        child.kill()  # not waited for: in an uninterruptible call it does not end at once
        return Probe(None)
    except ValueError:
        return Probe(decision.BROKEN, "", f"the trial ended with status {child.returncode}")


def start(*, say: bool) -> None:
    """Choose a libcuda, make the choice effective, and, if `say`, print what was chosen."""
    root = Path("/")
    given = account.changes(os.environ, os.getuid())
    mode, complaint = read_mode(os.environ)
    made = decide(root, mode, BUDGET)
    _, environment = effect.apply(made.choice, made.host, root, os.environ, COMPAT_ROOT)
    print(effect.exports({**environment, **given}), end="")
    compiles = account.complaint({**os.environ, **given})
    lines = (complaint, made.line, compiles)
    for line in lines if say else ():
        if line:
            print(f"torch-images: {line}", file=sys.stderr)


if __name__ == "__main__":
    start(say="--say" in sys.argv[1:] and not os.environ.get("TORCH_IMAGE_QUIET"))
