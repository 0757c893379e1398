"""The refusal of an engine or registry -> the error for the user. Pure."""

from __future__ import annotations

import re

from torch_images.errors import DiskError, EngineError, NetworkError, UsageError, shown

# Messages of Docker 26.1.5 with runc 1.1.5 that cannot give a container a GPU. "GPU vendor" is from
# Docker 29; the messages of NVIDIA's hook are in the source of its Container Toolkit. A file that
# cannot be mounted or started is listed in a CDI spec, such as a file of a replaced driver.
_NO_GPU = re.compile(
    r"[^:\n]*(?:could not select device driver|CDI|GPU vendor|NVIDIA Container Runtime Hook"
    r"|nvidia-container-cli|error mounting|fork/exec)"
)
_GIVE_GPUS = (
    "install nvidia-container-toolkit; --gpus nvidia.com/gpu=all needs CDI on in the engine, "
    "and a spec from `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`: docs/gpu.md"
)
# The message of runc 1.1.5 if the kernel cannot start a program, as of another processor.
FOREIGN = r"exec /\S+: exec format error"
# The hint for that, if the platform is unknown.
NATIVE = (
    "run scripts/setup-engine --platform with the image's platform, such as linux/arm64, where the "
    "engine runs, or give a native builder with --builder"
)


def load_refusal(reason: str) -> EngineError | DiskError:
    """The error for an engine that fails to load an image."""
    if "no space left" in reason:
        return DiskError("the engine's disk is full", "free some with `invoke gc --images`")
    return EngineError(f"the engine refused the layers: {reason}", "build again")


def registry_refusal(image: str, text: str, *, missing: bool = False) -> NetworkError | UsageError:
    """The error for an image that cannot be pulled from a registry.

    UsageError if `missing`, the engine's answer that it does not exist, or if the text says so or
    refuses access. NetworkError otherwise.
    """
    if missing or re.search(r"not found|manifest unknown|denied|no such (?!host)", text):
        return UsageError(
            f"no registry gives you {image}: {text}", "check its name, or `docker login`"
        )
    return NetworkError(
        f"the registry of {image} could not be reached: {text}", "check network, proxy and login"
    )


def platform_refusal(output: str) -> EngineError | None:
    """The error for a container whose program is for another processor; None for other output."""
    if match := re.search(FOREIGN, output):
        return EngineError(
            f"the image is for another processor than the engine's: {shown(match[0])}", NATIVE
        )
    return None


def gpu_refusal(reason: str) -> EngineError | None:
    """The error for an engine that does not start a container with GPUs, with its message.

    None if `reason` is about something else.
    """
    if match := _NO_GPU.search(reason):
        words = shown(" ".join(reason[match.start() :].split()))
        return EngineError(f"the engine cannot give the container a GPU: {words}", _GIVE_GPUS)
    return None
