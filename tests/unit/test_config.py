from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_images.config.parse import load_config
from torch_images.config.types import Config
from torch_images.errors import ConfigError

Write = Callable[..., Path]

BOOKWORM_SUITE = "    suite: bookworm\n"
# Read from the file, so that another patch release of CUDA changes no test.
COMPILER = "".join(
    line
    for line in (Path(__file__).resolve().parents[2] / "images.yaml")
    .read_text()
    .splitlines(keepends=True)
    if line.startswith(("    release: 12.8.", "    archives: ["))
)

# An architecture that CUDA 13 cannot target, before the first one of images.yaml.
PASCAL = '  "6.1":\n    family: Pascal\n    gpus: [Tesla P7]\n  "8.0":'


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
        (
            "registry:",
            "registri:",
            "images.yaml:4: unknown key 'registri'; did you mean 'registry'",
        ),
        (
            "    family: Ampere",
            "    famly: Ampere",
            "unknown key 'architectures.8.0.famly'; did you",
        ),
        ("owner: torch-images\n", "", "the file lacks the key 'owner'"),
        ("owner: torch-images", "owner: [a]", "'owner' must be a value, not a list"),
        (
            "owner: torch-images",
            "owner: true",
            "'owner' must be text, not 'true'; put it in quotes",
        ),
        ("owner: torch-images", "owner: Torch Images", "which is not a lower-case name"),
        ("owner: torch-images", 'owner: "a\\nb"', "must be one line of printable text"),
        ("torch: [2.11.0", "torch: ['>=2.11'", "does not pin a version; give one exact version"),
        ("torch: [2.11.0", "torch: [2.11.0+cu130", "names a local version; write 2.11.0"),
        ("torch: [2.11.0, 2.12.1", "torch: [2.12.1, 2.11.0", "does not come after 2.12.1"),
        ("torch: [2.11.0, 2.12.1", "torch: [2.11.0, 2.11", "does not come after 2.11.0"),
        ("torch: [2.11.0, 2.12.1", "torch: [2.11.0, 2.11.0", "'2.11.0' is listed twice"),
        ('"13.0": 2.11.0}', '"13.0": 2.11.1}', "CUDA 13.0 has no torch '2.11.1'; did you mean '2"),
        ('"13.0": 2.11.0}', '"13.5": 2.11.0}', "unknown cuda '13.5'; did you mean '13."),
        (
            '    beside: {"12.8"',
            '    # {"12.8"',
            "source 'fork' does not say which torch's CUDA libraries it is compiled with",
        ),
        ("    fit: optional", "    fit: maybe", "which is not required or optional"),
        ("    in-step: minor", "    in-step: major", "which is not minor"),
        ("toolkit: [cccl,", "toolkit: [CCCL,", "which is not a part of cuda-toolkit like nvcc"),
        ("commit: a58677f", "commit: main #", "is not a full commit of 40 hexadecimal digits"),
        ("nvidia/cuda:", "nvidia/cuda #", "is not an image with its tag"),
        ("    mirror: http://archive.ubuntu.com/ubuntu\n", "", "'ubuntu24.04' lacks the mirror"),
        ("snapshot: https://snapshot.ubuntu.com", "snapshot: /srv", "is not an http or https URL"),
        ('cuda: "13.0"', 'cuda: "13.5"', "unknown cuda '13.5'; did you mean '13."),
        ('  "8.0":', '  "8":', "'8' is not a compute capability like 9.0"),
        (
            '  "8.0":',
            PASCAL,
            "CUDA 13.0 cannot target 6.1 (its compiler goes from 7.5 to 12.1)",
        ),
        ('  "8.6":', '  "8.0":', "'architectures.8.0' is given twice; first at images.yaml:"),
        ("[A100, A30, A800]", "[A100, A100, A800]", "'A100' is listed twice"),
        ("  - source: [fork,", "  - sorce: [fork,", "unknown key 'exclude[3].sorce'; did you mean"),
        ("  - source: [fork,", "  - source: [frok,", "unknown source 'frok'; did you mean 'fork'?"),
        ("torch: [2.11.0, 2.12.1, 2.13.0]\n    r", "torch: [new]\n    r", "does not pin a version"),
        (
            "  - source: [fork, ",
            "  - source: [fork, fork, ",
            "'fork' is listed twice in 'exclude[3].source'",
        ),
        ("  - source: [fork, fork-slim]", "  - source: []", "'exclude[3].source' is empty"),
        (
            '  - variant: vllm\n    cuda: "12.8"\n    reason',
            "  - reason",
            "an exclude must name at least one axis",
        ),
        (
            COMPILER,
            "",
            "variant devel has a compiler, CUDA 12.8 names none; add an exclude with cuda: '12.8'",
        ),
        (
            "    release: 12.8.",
            "    # 12.8.",
            "12.8 must give both release and archives, or neither",
        ),
        ("option: USE_CUDNN}", "option: USE-CUDNN}", "'USE-CUDNN' is not the name of an option"),
        ('BUILD_TEST: "0"', '2BUILD: "0"', "'2BUILD' is not the name of an option"),
        ('BUILD_TEST: "0"', 'A=B: "0"', "'A=B' is not the name of an option"),
        ("features: [cudnn,", "features: [cuddn,", "unknown feature 'cuddn'; did you mean 'cudnn'"),
        ("without: [fbgemm,", "without: [tf32,", "'tf32' cannot be left out: no option does it"),
        ("like: fork", "like: frok", "no source 'frok' above; did you mean 'fork'?"),
        (
            "    description: The wheels that",
            "    without: [kineto]\n    description: The wheels that",
            "source 'wheel' compiles nothing that has without",
        ),
        ("      version: 3.7.1", "      version: three", "which does not pin a version"),
        (
            "archives: https://dev",
            "archives: file://dev",
            "'archives' is 'file://developer",
        ),
        ("cuda-home: /usr/local/cuda", "cuda-home: cuda", "which is not an absolute path"),
        ("mode: auto", "mode: requird", "unknown compat mode 'requird'; did you mean 'required'?"),
        (
            "key: EB693B30",
            "key: '3BF863CC' #",
            "is not a full fingerprint of 40 hexadecimal digits",
        ),
        ("  linux/amd64: https://dev", "  linux/amd64: file:///x #", "is not an http or https URL"),
        ("    linux/amd64: https", "    linux/x86: https", "unknown platform 'linux/x86'"),
        (
            "platforms: [linux/amd64,",
            "platforms: [amd64,",
            "unknown platform 'amd64'; did you mean 'linux/amd64'",
        ),
        ("platforms: [linux/amd64, linux/arm64]", "platforms: []", "'platforms' is empty"),
        ('floor: "525"', 'floor: "525.60"', "which is not a driver branch like 580"),
        ('compat: ["470",', 'compat: ["470.1",', "which is not a driver branch like 535"),
        ("    size: 20", "    size: 9", "a volume of 9 GB is too small; give 10 or more"),
        ("  room: 20", "  room: 20GB", "'pods.room' is '20GB', which is not a number of GB"),
        (
            "ports: [22/tcp, 8888/http]",
            "ports: [8888]",
            "which is not a port like 22/tcp or 8888/http",
        ),
        ("api: https://api", "api: ftp://api", "which is not an http or https URL"),
        ("  environment: {}", "  environment: {A-B: c}", "'A-B' is not the name of a variable"),
        ("  variant: pod\n  ports", "  variant: pd\n  ports", "did you mean 'pod'?"),
        (
            "    - of: [torch]\n      files",
            "    - of: [torch]\n      fils",
            "did you mean 'files'?",
        ),
        ("of: [sympy]", "of: [Sym_Py]", "'Sym_Py' is not the name of a wheel; write sym-py"),
        ("files: [sympy/", "files: [/sympy/", "is not a path below site-packages, with * and ?"),
        (
            "    - of: [sympy]\n      files: [sympy/*/tests/*]",
            "    - of: [sympy]",
            "a removal must name files, code or symbols",
        ),
        (
            "    - of: [torch]\n      code:",
            "    - of: [nvidia-cublas]\n      code:",
            "'code' of nvidia-cublas cannot be removed: NVIDIA's licence forbids changed copies",
        ),
        ("  prune:\n    - of", "  pruned:\n    - of", "did you mean 'prune'?"),
        ("extras: [vision, ", "extras: [vison, ", "unknown extra 'vison'; did you mean 'vision'?"),
        (
            "extras: [vllm]",
            "extras: [cutlass-dsl, vllm]",
            "extras cutlass-dsl and vllm cannot be in one image: vLLM pins an older nvidia-cut",
        ),
        (
            "extras: [vllm]",
            "extras: [vision, vllm, recommenders]",
            "variant vllm: the wheels of recommenders have code for 8.0, 9.0, 10.0 only; add an "
            "exclude with variant: 'vllm', arch: '",
        ),
        (
            '"12.0", "12.1"]\n    reason: FBGEMM',
            '"12.1"]\n    reason: FBGEMM',
            "variant recsys: the wheels of recommenders have code for 8.0, 9.0, 10.0 only",
        ),
        ("    unpack: /opt/cutlass\n", "", "extra 'cutlass' has links, but is not unpacked"),
        ("      cutlass-dsl: vLLM", "      cutlas: vLLM", "did you mean 'cutlass'"),
        ('{"12.8": ["cupy', '{"12.9": ["cupy', "unknown cuda '12.9'; did you mean '12.8'"),
        ("ports: [22, 8888]", "ports: [ssh]", "which is not a port"),
        ('    "13.2": "595"', '    "13.2": "x"', "which is not a driver branch like 580"),
        (BOOKWORM_SUITE, "", "must have either a suite to bootstrap or images"),
        ("g++, libpython3.11-dev", "g++, $(reboot)", "which is not the name of a Debian package"),
        ("packages: [numpy,", "packages: [torch,", "torch is set per CUDA version"),
        ("packages: [numpy,", "packages: ['a ==',", "is not a requirement"),
        ("registry:", "registry: [", "not valid YAML"),
    ],
)
def test_refused_with_line_and_advice(yaml_file: Write, old: str, new: str, expected: str) -> None:
    text = complaint(yaml_file((old, new)))
    assert text.startswith("images.yaml:")
    assert expected in text


def test_the_line_is_the_right_one(yaml_file: Write) -> None:
    path = yaml_file(("homepage:", "homepag:"))
    number = (
        path.read_text().splitlines().index("homepag: https://github.com/torch-images/torch-images")
    )
    assert complaint(path).startswith(f"images.yaml:{number + 1}: ")


def test_a_missing_file(tmp_path: Path) -> None:
    assert "No such file" in complaint(tmp_path / "images.yaml")


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    path.write_text("# nothing\n")
    assert complaint(path) == "images.yaml: the file is empty"


def test_an_impossible_pair_may_be_excluded(yaml_file: Write) -> None:
    rule = '  - cuda: "13.0"\n    arch: "6.1"\n    reason: dropped in CUDA 13\n'
    rule += rule.replace("13.0", "13.2")
    rule += "  - variant: recsys\n    reason: not for 6.1\n"
    path = yaml_file(('  "8.0":', PASCAL), ("exclude:\n", "exclude:\n" + rule))
    assert "6.1" in load_config(path).names("arch")


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


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.binary(max_size=300))
def test_no_file_makes_a_traceback(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(data)
    assert complaint(path).startswith("any.yaml")


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.integers(min_value=0), st.sampled_from(["", ":", "- x", "\t", "'", "{}", "a: b"]))
def test_no_damaged_line_makes_a_traceback(tmp_path: Path, place: int, line: str) -> None:
    source = Path(__file__).resolve().parents[2] / "images.yaml"
    lines = source.read_text().splitlines()
    lines[place % len(lines)] = line
    path = tmp_path / "images.yaml"
    path.write_text("\n".join(lines))
    try:
        load_config(path)
    except ConfigError as error:
        assert str(error).startswith("images.yaml")
