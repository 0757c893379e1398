"""images.yaml -> Config: what is refused, by the line and with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_images.config.load import load_config
from torch_images.errors import ConfigError

Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # Keys and kinds.
        ("registry:", "registri:", "3:1: 'registri' is an unknown key; did you mean 'registry'?"),
        ("owner: torch-images\n", "", "the file lacks the key 'owner'"),
        ("owner: torch-images", "owner: []", "4:1: 'owner' must be a text"),
        ("  environment: {}", "  environment: []", "'pods.environment' must be a mapping"),
        ('  "8.6":', '  "8.0":', "'architectures.8.0' is given twice"),
        ('"3.7": [K80]', '"3.7": []', "'other-gpus.3.7' is empty"),
        # A key, or a member of a list, is checked as the field beside it says.
        ('  "8.0":', '  "8":', "'architectures.8' is not a compute capability like 9.0"),
        ("{include: cutlass", "{../etc: cutlass", "'extras.cutlass.links.../etc' is not a path"),
        ("g++, python3", "g++, $(reboot)", "packages[2]' is '$(reboot)', which is not the na"),
        ("api: https://api", "api: https://me:secret@api", "'pods.api' is 'https://***@api"),
        ("  volume: 20", "  volume: 9", "'pods.volume' is '9', which is refused: Input should be greater than or eq"),
        # Names that are explained elsewhere in the file.
        ("features: [cudnn,", "features: [cuddn,", "which is an unknown feature; did you mean 'cudnn'"),
        ("platforms: [linux/amd64, linux/arm64]", "platforms: [linux/amd64]", "is an unknown platform"),
        ("compat: with}", "compat: wit}", "is 'wit', which is not a value of compat; did you mean 'with'?"),
        # What goes together.
        ('SAMPLER: "0"', 'SAMPLER: "$(id)"', "'$(id)'"),
        ("extras: [vllm]", "extras: [cuda-python, vllm]", "which cannot be in one image with cuda-pyt"),
        ("    - of: [torch]\n      code:", "    - of: [nvidia-cublas]\n      code:", "NVIDIA's licence for"),
        # GPUs.
        ('"3.7": [K80]', '"3.7": [H100]', "'architectures' and other-gpus have 'H100' more than once"),
        ("{K80: [p2]", "{H900: [x9]", "'gpu-aliases' has 'H900', which is no GPU"),
        # Names that an identifier or a tag could not tell apart.
        ("variants:\n", "variants:\n  fork: {description: x}\n", "has the name of a source; rename one"),
        ("variants:\n", "variants:\n  sm90: {description: x}\n", "has a name that tags use for something"),
        ("variants:\n", "variants:\n  x-q: {description: x}\n", "'variants.x-q' is not a name"),
    ],
)  # fmt: skip
def test_load_refuses_with_line_and_advice(
    yaml_file: Write, old: str, new: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(yaml_file((old, new)))
    text = str(caught.value)
    assert text.isprintable()
    assert re.match(r"images.yaml:[0-9]+:[0-9]+: ", text)
    assert expected in text


def test_exclude_may_name_a_dropped_release_of_torch(yaml_file: Write) -> None:
    """Otherwise `invoke lock --upgrade torch` would leave an images.yaml that cannot be read."""
    row = "  - {variant: vllm, torch: 2.10.9, reason: x}\n"
    loaded = load_config(yaml_file(("exclude:\n", f"exclude:\n{row}")))
    assert loaded.excluded(variant="vllm", torch="2.10.9") == "x"
