from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from torch_images.config.load import load_config
from torch_images.config.matrix import matrix
from torch_images.config.rules import problems
from torch_images.config.types import Config
from torch_images.errors import ConfigError

Write = Callable[..., Path]

TARGETS = (
    '["7.5", "8.0", "8.6", "8.7", "8.8", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"]'
)
# Read from the file, so that another patch release of CUDA changes no test.
COMPILER = "".join(
    line
    for line in (Path(__file__).resolve().parents[2] / "images.yaml")
    .read_text()
    .splitlines(keepends=True)
    if line.startswith(("    release: 12.8.", "    archives: ["))
)


def complaint(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_projects_own_file(config: Config) -> None:
    assert {"12.8", "13.0"} <= set(config.names("cuda"))
    assert {"8.0", "9.0", "12.0"} <= set(config.names("arch"))
    capabilities = [a.capability for a in config.architectures]
    assert capabilities == sorted(set(capabilities))
    assert all(torch.count(".") == 2 for torch in config.names("torch"))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # Keys and kinds.
        ("registry:", "registri:", "4:1: 'registri' is an unknown key; did you mean 'registry'?"),
        ("owner: torch-images\n", "", "images.yaml:4:1: the file lacks the key 'owner'"),
        ('    driver: "570.26"\n', "", "'cuda.12.8' lacks the key 'driver'"),
        ("owner: torch-images", "owner: true", "5:8: 'owner' must be text, not 'true'; put it in quo"),
        ("owner: torch-images", "owner: Torch Images", "5:8: 'owner' is 'Torch Images', which is not"),
        ("  environment: {}", "  environment: []", "'pods.environment' must be a mapping, not a list"),
        ('  "8.6":', '  "8.0":', "'architectures.8.0' is given twice; first at images.yaml:"),
        ("[A100, A30, A800]", "[A100, A100, A800]", "'A100' is listed twice in 'architectures.8.0.gpus'"),
        # Names that are explained elsewhere in the file.
        ('"13.0": 2.11.0}', '"13.0": 2.11.1}', "which is not a torch of CUDA 13.0; did you mean '2"),
        ('  cuda: "13.0"\n  s', "  cuda: all\n  s", "'defaults.cuda' is 'all', which is an unknown cuda"),
        ("    source: fork\n", "    torch: new\n", "'exclude[2].torch' is 'new', which does not pin a v"),
        ("features: [cudnn,", "features: [cuddn,", "which is an unknown feature; did you mean 'cudnn'"),
        ("platforms: [linux/amd64, linux/arm64]", "platforms: [linux/amd64]", "is an unknown platform"),
        ("arm64-gpus: [GH200", "arm64-gpus: [GH20", "is 'GH20', which is not in any list of GPUs; did you"),
        ("compat: with}", "compat: wit}", "'catalogue[10].compat' is 'wit', which is not a value of compat; did you mean 'with'?"),
        # A key, or a member of a list, is checked as the field beside it says.
        ('  "8.0":', '  "8":', "'architectures.8' is not a compute capability like 9.0"),
        ('BUILD_TEST: "0"', 'A=B: "0"', "'sources.fork.torch-options.A=B' is not the name of an opt"),
        ('  "12.8":\n    base', '  "2.8":\n    base', "'cuda.2.8' is not a CUDA version like 12.8"),
        ("      include: cutlass", "      ../etc: cutlass", "'extras.cutlass.links.../etc' is not a path"),
        ("g++, libpython3.11-dev", "g++, $(reboot)", "packages[2]' is '$(reboot)', which is not the na"),
        ("torch: [2.11.0, 2.12.1", "torch: [2.12.1, 2.11.0", "torch[1]' is '2.11.0', which does not come"),
        ("api: https://api", "api: https://me:secret@api", "'pods.api' is 'https://***@api"),
        # What must not be empty.
        (f"targets: {TARGETS}", "targets: []", "'cuda.13.0.targets' is empty; give one entry or more"),
        ('"3.7": [K80]', '"3.7": []', "'other-gpus.3.7' is empty"),
        # What goes together.
        ('    beside: {"12.8"', '    # {"12.8"', "'sources.fork' does not name the torch whose CUDA libr"),
        ("VLLM_USE_FLASHINFER_SAMPLER: ", "vllm-sampler: ", "is not the name of an environment variable"),
        ("VLLM_USE_FLASHINFER_SAMPLER: ", "LD_PRELOAD: ", "is a variable that images set themselves; an"),
        ('SAMPLER: "0"', 'SAMPLER: "$(id)"', "'$(id)'"),
        ("extras: [vllm]", "extras: [cutlass-dsl, vllm]", "which cannot be in one image with cutlass-dsl: vL"),
        ("    - of: [torch]\n      code:", "    - of: [nvidia-cublas]\n      code:", "NVIDIA's licence for"),
        ('  - cuda: "12.8"\n    platform: linux/arm64\n', "  -\n", "'exclude[0]' names no axis; axes: cuda"),
        ("  volume: 20", "  volume: 9", "'pods.volume' is '9', which is too small; give 10 or more"),
        # What cannot be built is excluded.
        (COMPILER, "", "'variants.devel' has a compiler, but CUDA 12.8 names none; add an exclude with cuda"),
    ],
)  # fmt: skip
def test_refused_with_line_and_advice(yaml_file: Write, old: str, new: str, expected: str) -> None:
    text = complaint(yaml_file((old, new)))
    assert re.match(r"images.yaml:[0-9]+:[0-9]+: ", text)
    assert expected in text


def test_architectures_are_in_ascending_order(config: Config) -> None:
    one, other, *rest = config.architectures
    [problem] = problems(replace(config, architectures=(other, one, *rest)))
    assert problem.path == ("architectures", "7.0", "")
    assert problem.text == "comes after 7.5; list architectures in ascending order"


def test_a_missing_file(tmp_path: Path) -> None:
    assert "No such file" in complaint(tmp_path / "images.yaml")


def test_an_exclude_may_name_a_release_of_torch_that_is_gone(yaml_file: Write) -> None:
    """Otherwise `invoke lock --upgrade torch` would leave an images.yaml that cannot be read."""
    path = yaml_file(("torch: [2.11.0, 2.12.1, 2.13.0, 2.14.1]", "torch: [2.11.0, 2.13.0, 2.14.1]"))
    found = load_config(path)
    assert "2.12.1" not in found.names("torch")
    assert found.excluded(variant="recsys", arch="10.3", torch="2.13.0")
    assert not found.excluded(variant="recsys", arch="10.3", torch="2.14.1")


def test_versions_are_never_rounded(yaml_file: Write) -> None:
    path = yaml_file(('  "10.0":\n    family', "  10.0:\n    family"))
    assert "10.0" in load_config(path).names("arch")


def test_a_row_of_the_catalogue_says_where_it_is(yaml_file: Write) -> None:
    path = yaml_file(('  - {cuda: "13.2", base: bookworm}', '  - {cuda: "13.2", torch: "2.9"}'))
    with pytest.raises(ConfigError, match=r"^images.yaml:[0-9]+:5: the catalogue lists an image"):
        matrix(load_config(path))
