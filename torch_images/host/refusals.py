"""The words of an engine or registry that refuses -> the error that the user sees. Pure."""

from __future__ import annotations

import re

from torch_images.errors import DiskError, EngineError, NetworkError, UsageError, shown
from torch_images.host.cdi import KIND
from torch_images.host.gpus import GENERATE, INSTALL, TURN_ON

# How Docker 26.1.5 with runc 1.1.5 names a file of a CDI spec that is not there: what is mounted,
# a device, a program.
_GONE = re.compile(
    r"(?:error mounting|failed to stat CDI host device|fork/exec) \"?(?P<file>/[^\s\":]+)"
    r"[^\n]*no such file or directory"
)
# How runc 1.1.5 says that the kernel does not start a program, as that of another processor.
FOREIGN = r"exec /\S+: exec format error"
# What to do about it, where the platform's name is not known.
NATIVE = (
    "run scripts/setup-engine --platform with the image's platform, such as linux/arm64, where the "
    "engine runs, or give a native builder with --builder"
)
# An engine's words, what they mean ({} stands for the words), and what to do.
_REFUSALS = (
    (r'could not select device driver "cdi"', "CDI is off in the engine", TURN_ON),
    (r"could not select device driver", "the engine cannot give GPUs to containers", INSTALL),
    (r"unresolvable CDI devices .*", "the engine refused: {}", f"run {GENERATE}"),
    (r"failed to discover GPU vendor .*", "the engine refused: {}", f"run {GENERATE}"),
    (
        r"NVIDIA Container Runtime Hook directly",
        "NVIDIA's Container Toolkit is set to CDI, so Docker's own --gpus does not work",
        f"give --gpus {KIND}=all",
    ),
    (r"nvidia-container-cli: .*", "the engine refused: {}", "run nvidia-smi on the host"),
    (r".*CDI device.*", "the engine refused: {}", f"run {GENERATE}"),
)


def load_refusal(reason: str) -> EngineError | DiskError:
    """The error for an engine that does not load an image."""
    if "no space left" in reason:
        return DiskError("the engine's disk is full", "free some with `docker system prune`")
    return EngineError(f"the engine did not take the layers: {reason}", "build again")


def registry_refusal(image: str, text: str, *, missing: bool = False) -> NetworkError | UsageError:
    """The error for a registry that gives no image.

    UsageError where `missing`, the engine's own answer that there is none, or where the text says
    so or refuses access. NetworkError otherwise.
    """
    if missing or re.search(r"not found|manifest unknown|denied|no such (?!host)", text):
        return UsageError(f"no registry gives {image}: {text}", "check its name, or `docker login`")
    return NetworkError(
        f"the registry of {image} could not be asked: {text}", "check network, proxy and login"
    )


def platform_refusal(output: str) -> EngineError | None:
    """The error for a container whose program is for another processor; None for other output."""
    if found := re.search(FOREIGN, output):
        return EngineError(
            f"the image is for another processor than the engine's: {shown(found[0])}", NATIVE
        )
    return None


def gpu_refusal(reason: str) -> EngineError | None:
    """The error for an engine that does not start a container with GPUs, by its own words.

    None for words about something else. The words are those of Docker 26.1.5; "GPU vendor" is
    Docker 29's, and those of NVIDIA's hook are in the source of its Container Toolkit.
    """
    if gone := _GONE.search(reason):
        file = shown(gone["file"])
        return EngineError(
            f"the CDI spec names {file}, which is not there", f"run {GENERATE}, as for a new driver"
        )
    for words, message, hint in _REFUSALS:
        if found := re.search(words, reason):
            return EngineError(message.format(shown(found[0])), hint)
    return None
