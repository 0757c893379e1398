from __future__ import annotations

import pytest
from docker.types import DeviceRequest

from torch_images.errors import NetworkError, TorchImagesError, UsageError
from torch_images.host.gpus import gpu_options
from torch_images.host.refusals import registry_refusal


# The words of moby 26.1 for each case.
@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("manifest for a:1 not found: manifest unknown: manifest unknown", UsageError),
        ("pull access denied for a, repository does not exist or may require login", UsageError),
        ('Get "https://r/v2/": dial tcp: lookup r on 10.0.0.1:53: no such host', NetworkError),
        ('Get "https://r/v2/": dial tcp 127.0.0.1:5000: connect: connection refused', NetworkError),
        ("toomanyrequests: You have reached your pull rate limit", NetworkError),
    ],
)
def test_what_a_registry_answers(words: str, kind: type[TorchImagesError]) -> None:
    error = registry_refusal("r/a:1", words)
    assert type(error) is kind
    assert "r/a:1" in str(error)
    assert words.rsplit(":", maxsplit=1)[-1].strip() in str(error)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("all", {"Count": -1, "DeviceIDs": []}),
        ("2", {"Count": 2, "DeviceIDs": []}),
        ("device=0,1", {"Count": 0, "DeviceIDs": ["0", "1"]}),
        ("device=GPU-a2d010dd", {"Count": 0, "DeviceIDs": ["GPU-a2d010dd"]}),
    ],
)
def test_gpus_in_the_words_of_docker_run(words: str, wanted: dict[str, object]) -> None:
    [options] = gpu_options(words)["device_requests"]
    request = DeviceRequest(**options)
    assert {key: request[key] for key in wanted} == wanted
    assert request["Capabilities"] == [["gpu"]]


def test_no_gpus() -> None:
    assert gpu_options("") == {}


@pytest.mark.parametrize("words", ["0", "al", "device=", "-1", "device=0,,1"])
def test_what_is_no_choice_of_gpus(words: str) -> None:
    with pytest.raises(UsageError, match=r"is not a choice of GPUs; give all, 2, or device=0,1"):
        gpu_options(words)
