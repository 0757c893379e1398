"""The words of an engine or registry that refuses -> the error that the user sees. Pure."""

from __future__ import annotations

import re

from torch_images.errors import DiskError, EngineError, NetworkError, UsageError, shown

# What Docker 26.1.5 with runc 1.1.5 says where it gives a container no GPU. "GPU vendor" is Docker
# 29's; the words of NVIDIA's hook are in the source of its Container Toolkit. A file that cannot be
# mounted or started is one that a CDI spec names, such as one of a driver that was replaced.
_NO_GPU = re.compile(
    r"[^:\n]*(?:could not select device driver|CDI|GPU vendor|NVIDIA Container Runtime Hook"
    r"|nvidia-container-cli|error mounting|fork/exec)"
)
_GIVE_GPUS = (
    "install nvidia-container-toolkit; --gpus nvidia.com/gpu=all needs CDI on in the engine, "
    "and a spec from `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`: docs/gpu.md"
)
# How runc 1.1.5 says that the kernel does not start a program, as that of another processor.
FOREIGN = r"exec /\S+: exec format error"
# What to do about it, where the platform's name is not known.
NATIVE = (
    "run scripts/setup-engine --platform with the image's platform, such as linux/arm64, where the "
    "engine runs, or give a native builder with --builder"
)


def load_refusal(reason: str) -> EngineError | DiskError:
    """The error for an engine that does not load an image."""
    if "no space left" in reason:
        return DiskError("the engine's disk is full", "free some with `invoke gc --images`")
    return EngineError(f"the engine did not take the layers: {reason}", "build again")


def registry_refusal(image: str, text: str, *, missing: bool = False) -> NetworkError | UsageError:
    """The error for a registry that gives no image.

    UsageError where `missing`, the engine's own answer that there is none, or where the text says
    so or refuses access. NetworkError otherwise.
    """
    if missing or re.search(r"not found|manifest unknown|denied|no such (?!host)", text):
        return UsageError(
            f"no registry has {image} for you: {text}", "check its name, or `docker login`"
        )
    return NetworkError(
        f"the registry of {image} could not be reached: {text}", "check network, proxy and login"
    )


def platform_refusal(output: str) -> EngineError | None:
    """The error for a container whose program is for another processor; None for other output."""
    if found := re.search(FOREIGN, output):
        return EngineError(
            f"the image is for another processor than the engine's: {shown(found[0])}", NATIVE
        )
    return None


def gpu_refusal(reason: str) -> EngineError | None:
    """The error for an engine that does not start a container with GPUs, with its own words.

    None for words about something else.
    """
    if found := _NO_GPU.search(reason):
        words = shown(" ".join(reason[found.start() :].split()))
        return EngineError(f"the engine cannot give the container a GPU: {words}", _GIVE_GPUS)
    return None
