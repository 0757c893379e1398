"""Which way GPUs go to a container, and what the user is told where none goes."""

from __future__ import annotations

from typing import Any

import pytest
from docker.types import DeviceRequest

from torch_images.errors import EngineError, UsageError
from torch_images.host.gpus import (
    GpuWays,
    by_number,
    check_words,
    device_requests,
)
from torch_images.host.refusals import gpu_refusal

DEVICES = (
    *("nvidia.com/gpu=1", "nvidia.com/gpu=10", "nvidia.com/gpu=2", "nvidia.com/gpu=GPU-a2d0"),
    *("nvidia.com/gpu=all", "example.com/nic=0"),
)
OWN = GpuWays(own=True, cdi=False, devices=())
BOTH = GpuWays(own=True, cdi=True, devices=DEVICES)
CDI = GpuWays(own=False, cdi=True, devices=DEVICES)
OFF = GpuWays(own=False, cdi=False, devices=DEVICES)
BARE = GpuWays(own=False, cdi=True, devices=())
NOTHING = GpuWays(own=False, cdi=False, devices=())
# Engines on other machines: nothing is known but what `docker info` says.
FAR = GpuWays(own=None, cdi=False, devices=None)
FAR_CDI = GpuWays(own=None, cdi=True, devices=None)
FAR_NEW = GpuWays(own=None, cdi=True, devices=())
REMEDY = "run nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"


def asked(words: str, ways: GpuWays) -> dict[str, Any]:
    """The one request for these words, as docker-py sends it to the engine."""
    [request] = device_requests(words, ways)
    return dict(DeviceRequest(**request))


def own(count: int = 0, ids: tuple[str, ...] = ()) -> dict[str, Any]:
    """Docker's own request, as `docker run --gpus` makes it."""
    return {
        "Driver": "",
        "Count": count,
        "DeviceIDs": list(ids),
        "Capabilities": [["gpu"]],
        "Options": {},
    }


def cdi(*names: str) -> dict[str, Any]:
    """A CDI request. Docker 26.1.5 refuses one with a count or with options."""
    return {
        "Driver": "cdi",
        "Count": 0,
        "DeviceIDs": list(names),
        "Capabilities": [],
        "Options": {},
    }


@pytest.mark.parametrize("ways", [OWN, BOTH, FAR, FAR_NEW])
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("all", own(-1)),
        ("2", own(2)),
        ("device=0,1", own(0, ("0", "1"))),
        ("device=GPU-a2d010dd", own(0, ("GPU-a2d010dd",))),
        ("device=1:0", own(0, ("1:0",))),
    ],
)
def test_dockers_own_words_go_its_own_way(
    words: str, wanted: dict[str, Any], ways: GpuWays
) -> None:
    """Where that is there, or where another machine may have it."""
    assert asked(words, ways) == wanted


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("all", ("nvidia.com/gpu=all",)),
        ("device=2,1", ("nvidia.com/gpu=2", "nvidia.com/gpu=1")),
        ("device=GPU-a2d0", ("nvidia.com/gpu=GPU-a2d0",)),
        ("1", ("nvidia.com/gpu=1",)),
        ("3", ("nvidia.com/gpu=1", "nvidia.com/gpu=2", "nvidia.com/gpu=10")),
    ],
)
def test_without_it_they_go_by_cdi(words: str, names: tuple[str, ...]) -> None:
    assert asked(words, CDI) == cdi(*names)


@pytest.mark.parametrize("ways", [BOTH, CDI, FAR_CDI])
def test_names_of_devices_go_by_cdi(ways: GpuWays) -> None:
    assert asked("nvidia.com/gpu=all", ways) == cdi("nvidia.com/gpu=all")
    words = "nvidia.com/gpu=2,nvidia.com/gpu=1,nvidia.com/gpu=2,example.com/nic=0"
    assert asked(words, ways) == cdi(*list(dict.fromkeys(words.split(","))))


def test_what_a_far_engine_may_have_is_left_to_it() -> None:
    """CDI is on there and it lists no devices, as before Docker 28.2."""
    assert asked("all", FAR_CDI) == cdi("nvidia.com/gpu=all")
    assert asked("2", FAR_CDI) == cdi("nvidia.com/gpu=0", "nvidia.com/gpu=1")
    assert asked("device=7", FAR_CDI) == cdi("nvidia.com/gpu=7")


def test_no_gpus() -> None:
    assert device_requests("", NOTHING) == []
    check_words("")


@pytest.mark.parametrize(
    "words",
    [
        *("0", "al", "device=", "-1", "device=0,,1", "²", "device=²", "12345", "all,0"),
        *("all,nvidia.com/gpu=0", "nvidia.com/gpu", "nvidia.com/gpu=", "nvidia.com=0", "gpu=0"),
        *("/gpu=0", "nvidia.com/gpu=0,", "nvidia.com/gpu=-1", "v/gpu=0", "vendor.com/g=0"),
        *("9v.com/gpu=0", "nvidia.com/gpu=0 ", "nvidia.com/gpu=0\n", "nvidia.com/gpu=a=b"),
    ],
)
def test_what_is_no_choice_of_gpus(words: str) -> None:
    with pytest.raises(UsageError, match=r"is not a choice of GPUs; give all, 2, or device=0,1; "):
        check_words(words)


@pytest.mark.parametrize(
    ("words", "ways", "error", "said"),
    [
        ("all", NOTHING, EngineError, "the engine cannot give GPUs to containers; install the NV"),
        ("all", BARE, EngineError, f"but no spec is for nvidia.com/gpu; {REMEDY}"),
        ("2", BARE, EngineError, f"but no spec is for nvidia.com/gpu; {REMEDY}"),
        ("nvidia.com/gpu=0", BARE, EngineError, f"but no spec is for nvidia.com/gpu; {REMEDY}"),
        ("all", OFF, EngineError, "CDI is off in the engine, although specs for nvidia.com/gpu"),
        ("all", OFF, EngineError, 'add "features": {"cdi": true} to the daemon.json'),
        ("nvidia.com/gpu=0", OFF, EngineError, "CDI is off in the engine, although specs"),
        ("nvidia.com/gpu=0", OWN, EngineError, 'CDI is off in the engine; add "features"'),
        ("nvidia.com/gpu=3", CDI, UsageError, "no CDI spec has nvidia.com/gpu=3; did you mean '"),
        ("nvidia.com/gpu=al", BOTH, UsageError, "; did you mean 'nvidia.com/gpu=all'?"),
        ("device=3", CDI, UsageError, "no CDI spec has nvidia.com/gpu=3; did you mean '"),
        ("4", CDI, UsageError, "--gpus 4 is more than the CDI specs have; known: nvidia.com/gpu=1"),
    ],
)
def test_where_none_can_be_given(
    words: str, ways: GpuWays, error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as caught:
        device_requests(words, ways)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_spec_that_cannot_be_used_is_named() -> None:
    ways = GpuWays(own=False, cdi=True, devices=(), problem="/etc/cdi/a.yaml: it is\x1b[31m not")
    with pytest.raises(EngineError, match=r"for nvidia.com/gpu \(/etc/cdi/a.yaml: it is\\x1b\[31m"):
        device_requests("all", ways)


def test_other_devices_are_no_gpus() -> None:
    """A machine with a network card in its specs, and nothing of NVIDIA's."""
    ways = GpuWays(own=False, cdi=True, devices=("example.com/nic=0",))
    with pytest.raises(EngineError, match="no spec is for nvidia"):
        device_requests("all", ways)
    assert asked("example.com/nic=0", ways) == cdi("example.com/nic=0")


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("all", "10", "9", "GPU-x"), ("9", "10")),
        (("gpu1", "gpu0", "all"), ("gpu0", "gpu1")),
        (("0:1", "0:0", "1", "MIG-x", "all"), ("0:0", "0:1", "1")),
        (("GPU-b", "GPU-a", "all"), ("GPU-b", "GPU-a")),
        ((), ()),
    ],
)
def test_the_first_gpus_are_those_with_the_lowest_numbers(
    names: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    """A spec names each GPU by number, by UUID or by both: none is given twice."""
    kind = "nvidia.com/gpu="
    assert by_number([kind + name for name in names]) == tuple(kind + name for name in wanted)


OCI = (
    "failed to create task for container: failed to create shim task: OCI runtime create failed: "
    "runc create failed: unable to start container process: error during container init: "
)


# The words of Docker 26.1.5, but for the vendor's (Docker 29) and the hook's (NVIDIA's toolkit).
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            'could not select device driver "" with capabilities: [[gpu]]',
            "the engine cannot give GPUs to containers; install the NVIDIA Container Toolkit",
        ),
        (
            'could not select device driver "cdi" with capabilities: []',
            'CDI is off in the engine; add "features": {"cdi": true}',
        ),
        (
            "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=7, a.com/b=c",
            f"unresolvable CDI devices nvidia.com/gpu=7, a.com/b=c; {REMEDY}",
        ),
        (
            f'{OCI}error mounting "/usr/lib/x/libcuda.so.570.1" to rootfs at "/usr/lib/y": '
            "stat /usr/lib/x/libcuda.so.570.1: no such file or directory: unknown",
            f"the CDI spec names /usr/lib/x/libcuda.so.570.1, which is not there; {REMEDY}",
        ),
        (
            "CDI device injection failed: failed to inject devices: failed to stat CDI host device "
            '"/dev/nvidia77": no such file or directory',
            f"the CDI spec names /dev/nvidia77, which is not there; {REMEDY}",
        ),
        (
            f"{OCI}error running hook #0: fork/exec /usr/bin/nvidia-cdi-hook: no such file or "
            "directory: unknown",
            f"the CDI spec names /usr/bin/nvidia-cdi-hook, which is not there; {REMEDY}",
        ),
        (
            "CDI device injection failed: failed to inject devices: failed to stat CDI host device "
            '"/etc/hostname": not a device node',
            f'failed to stat CDI host device "/etc/hostname": not a device node; {REMEDY}',
        ),
        ("unexpected count in CDI device request", "refused: unexpected count in CDI device re"),
        (
            "failed to discover GPU vendor from CDI: no known GPU vendor found",
            f"failed to discover GPU vendor from CDI: no known GPU vendor found; {REMEDY}",
        ),
        (
            f"{OCI}error running hook: invoking the NVIDIA Container Runtime Hook directly (e.g. "
            "specifying the docker --gpus flag) is not supported.",
            "so Docker's own --gpus does not work; give --gpus nvidia.com/gpu=all",
        ),
        (
            f"{OCI}error running hook #0: exit status 1, stdout: , stderr: Auto-detected mode as "
            "'legacy'\nnvidia-container-cli: initialization error: nvml error: driver not loaded\n",
            "nvidia-container-cli: initialization error: nvml error: driver not loaded; run nvidia-",
        ),
    ],
)
def test_a_refusal_at_the_start_is_one_line(words: str, said: str) -> None:
    error = gpu_refusal(words)
    assert isinstance(error, EngineError)
    assert said in str(error)
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        "",
        'Conflict. The container name "/x" is already in use',
        f'{OCI}exec: "sleep": executable file not found in $PATH: unknown',
        "no such file or directory",
    ],
)
def test_other_refusals_stay_what_they_are(words: str) -> None:
    assert gpu_refusal(words) is None
