"""What --gpus asks an engine for, and what the user is told where it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from docker.types import DeviceRequest

from torch_images.errors import EngineError, UsageError
from torch_images.host.diagnose import GPU, diagnose
from torch_images.host.gpus import device_requests


def device_request(words: str) -> dict[str, Any]:
    """The one request for these words, as docker-py sends it to the engine."""
    [request] = device_requests(words)
    return dict(DeviceRequest(**request))


@pytest.mark.parametrize(
    ("words", "count", "ids"),
    [
        ("all", -1, []),
        ("2", 2, []),
        ("device=0,1", 0, ["0", "1"]),
        ("device=GPU-a2d010dd", 0, ["GPU-a2d010dd"]),
        ("device=1:0", 0, ["1:0"]),
    ],
)
def test_device_requests_of_docker(words: str, count: int, ids: list[str]) -> None:
    """The request is the one that `docker run --gpus` makes."""
    assert device_request(words) == {
        "Driver": "",
        "Count": count,
        "DeviceIDs": ids,
        "Capabilities": [["gpu"]],
        "Options": {},
    }


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("nvidia.com/gpu=all", ["nvidia.com/gpu=all"]),
        (
            "nvidia.com/gpu=2,nvidia.com/gpu=GPU-a2d0,nvidia.com/gpu=2,example.com/nic=0:1",
            ["nvidia.com/gpu=2", "nvidia.com/gpu=GPU-a2d0", "example.com/nic=0:1"],
        ),
    ],
)
def test_device_requests_of_cdi(words: str, names: list[str]) -> None:
    """Docker 26.1.5 refuses a CDI request with a count or with options."""
    assert device_request(words) == {
        "Driver": "cdi",
        "Count": 0,
        "DeviceIDs": names,
        "Capabilities": [],
        "Options": {},
    }


@pytest.mark.parametrize(
    "words",
    [
        *("0", "al", "device=", "-1", "device=0,,1", "²", "device=²", "12345", "all,0"),
        *("all,nvidia.com/gpu=0", "nvidia.com/gpu", "nvidia.com/gpu=", "nvidia.com=0", "gpu=0"),
    ],
)
def test_device_requests_of_an_invalid_choice(words: str) -> None:
    with pytest.raises(UsageError, match=r"is not a choice of GPUs; give all, 2, or device=0,1; "):
        device_requests(words)


OCI = (
    "failed to create task for container: failed to create shim task: OCI runtime create failed: "
    "runc create failed: unable to start container process: error during container init: "
)


# The words of Docker 26.1.5, but for the vendor's (Docker 29) and the hook's (NVIDIA's toolkit).
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            'could not select device driver "" with capabilities: [[gpu]]',
            'could not select device driver "" with capabilities: [[gpu]]',
        ),
        (
            f'{OCI}error mounting "/usr/lib/x/libcuda.so.570.1" to rootfs at "/usr/lib/y": '
            "stat /usr/lib/x/libcuda.so.570.1: no such file or directory: unknown",
            'error mounting "/usr/lib/x/libcuda.so.570.1" to rootfs at "/usr/lib/y": '
            "stat /usr/lib/x/libcuda.so.570.1: no such file or directory: unknown",
        ),
        (
            f"{OCI}error running hook #0: fork/exec /usr/bin/nvidia-cdi-hook: no such file or "
            "directory: unknown",
            "fork/exec /usr/bin/nvidia-cdi-hook: no such file or directory: unknown",
        ),
        (
            f"{OCI}error running hook #0: exit status 1, stdout: , stderr: Auto-detected mode as "
            "'legacy'\nnvidia-container-cli: initialization error: nvml error: driver not loaded\n",
            "nvidia-container-cli: initialization error: nvml error: driver not loaded",
        ),
    ],
)
def test_refused_gpus_have_the_engines_message_and_a_hint(words: str, message: str) -> None:
    error = diagnose(GPU, words)
    assert isinstance(error, EngineError)
    assert error.message.endswith(f": {message}")
    assert "nvidia-container-toolkit" in error.hint


@pytest.mark.parametrize(
    "words",
    [
        "",
        'Conflict. The container name "/x" is already in use',
        f'{OCI}exec: "sleep": executable file not found in $PATH: unknown',
        "no such file or directory",
    ],
)
def test_other_refusals_are_not_about_gpus(words: str) -> None:
    assert diagnose(GPU, words) is None
