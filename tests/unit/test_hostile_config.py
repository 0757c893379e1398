"""images.yaml as nobody should write it: every fault is one line that names the place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.releases import T128
from torch_images.config.parse import load_config
from torch_images.errors import ConfigError

Write = Callable[..., Path]

# An architecture that CUDA 13 cannot target, before the first one of images.yaml.
PASCAL = '  "6.1":\n    family: Pascal\n    gpus: [Tesla P7]\n  "8.0":'
TARGETS = (
    '["7.5", "8.0", "8.6", "8.7", "8.8", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"]'
)


def complaint(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    text = str(caught.value)
    assert text.isprintable()
    return text


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # What apt reads as more than a name.
        ("packages: [git, make]", "packages: [git, make-]", "'make-', which is not the name of"),
        ("packages: [git, make]", "packages: [git, apt-]", "'apt-', which is not the name of a D"),
        ("packages: [git, make]", "packages: [git, 'make*']", "is not the name of a Debian"),
        ("packages: [git, make]", "packages: [git, '^git$']", "is not the name of a Debian"),
        ("packages: [git, make]", "packages: [git, 'lamp^']", "is not the name of a Debian"),
        ("packages: [git, make]", "packages: [git, '?essential']", "is not the name of a Debian"),
        ("packages: [git, make]", "packages: [git, '~n.']", "is not the name of a Debian"),
        ("packages: [git, make]", "packages: [git, m..e]", "is not the name of a Debian"),
        ("packages: [git, make]", "packages: [git, mak.]", "is not the name of a Debian"),
        ("packages: [git, make]", "packages: [git, g.+]", "is not the name of a Debian"),
        ("packages: [git, make]", "packages: [git, make/sid]", "is not the name of a Debian"),
        ("packages: [git, make]", "packages: [git, make=4]", "is not the name of a Debian"),
        ("packages: [git, make]", "packages: [git, 'make:i386']", "is not the name of a Debian"),
        ("packages: [git, make]", "packages: [git, --purge]", "is not the name of a Debian"),
        ("packages: [git, make]", "packages: [git, make, git]", "'git' is listed twice"),
        # Paths in Dockerfiles and in the shell of a step.
        ("unpack: /opt/cutlass", "unpack: /opt/../etc", "which is not an absolute path"),
        ("unpack: /opt/cutlass", "unpack: /opt/./x", "which is not an absolute path"),
        ("unpack: /opt/cutlass", "unpack: /opt/..", "which is not an absolute path"),
        ("unpack: /opt/cutlass", "unpack: /opt/a b", "which is not an absolute path"),
        ("unpack: /opt/cutlass", "unpack: /opt/$HOME", "which is not an absolute path"),
        ("unpack: /opt/cutlass", "unpack: /opt/x/", "which is not an absolute path"),
        ("unpack: /opt/cutlass", "unpack: /", "which is not an absolute path"),
        ("folder: /workspace", "folder: '/work space'", "which is not an absolute path"),
        ("folder: /workspace", "folder: /..", "which is not an absolute path"),
        ("folder: /workspace", "folder: '/w`id`'", "which is not an absolute path"),
        ("cuda-home: /usr/local/cuda", "cuda-home: /usr/../cuda", "not an absolute path"),
        ("cuda-home: /usr/local/cuda", "cuda-home: /usr/*", "not an absolute path"),
        ("cuda-home: /usr/local/cuda", "cuda-home: '/usr/\"x'", "not an absolute path"),
        ("    path: /workspace", "    path: /a/../b", "'pods.volume.path' is '/a/../b', which is"),
        ("      include: cutlass", "      ../etc: cutlass", "'../etc' is not a path below the"),
        ("      include: cutlass", "      a b: cutlass", "'a b' is not a path below the folder"),
        ("      include: cutlass", "      a=b: cutlass", "'a=b' is not a path below the folder"),
        ("      include: cutlass", "      /a: cutlass", "'/a' is not a path below the folder"),
        ("include: cutlass_library/", "include: a/../../", "'a/../../source/include' is not a path"),
        ("include: cutlass_library/", "include: a b/", "'a b/source/include' is not a path below"),
        ("      tools: ", "      include/tools: ", "'include/tools' lies in 'include', which is a"),
        ("files: [sympy/", "files: [sympy/../", "is not a path below site-packages, with * and ?"),
        ("cluster2600/pytorch\n", "../pytorch\n", "which is not an https URL"),
        ("unpack: /opt/cutlass", "unpack: /opt", "'/opt', which is, holds or lies in /opt/venv"),
        ("unpack: /opt/cutlass", "unpack: /etc/x", "which is, holds or lies in /etc; give one"),
        ("unpack: /opt/cutlass", "unpack: /usr/local/cuda/x", "is where extra cutlass is unpacked"),
        ("cuda-home: /usr/local/cuda", "cuda-home: /usr", "which is, holds or lies in /usr/bin"),
        ("of: [sympy]", "of: ['sym py']", "which is not the name of a wheel"),
        ("  environment: {}", "  args: \"sh -c 'x\"\n  environment: {}", "is not a row of words: No cl"),
        # Numbers.
        ("ports: [22, 8888]", "ports: [22, 65536]", "'65536', which is not a port; give one from 1"),
        ("ports: [22, 8888]", "ports: [22, 0]", "'0', which is not a port; give one from 1 to 65535"),
        ("ports: [22, 8888]", "ports: [22, 022]", "'022', which is not a port"),
        ("ports: [22, 8888]", "ports: [22, -1]", "'-1', which is not a port"),
        ("ports: [22, 8888]", "ports: [22, ²]", "'²', which is not a port"),
        ("ports: [22, 8888]", "ports: [22, 22]", "'22' is listed twice"),
        ("ports: [22, 8888]", f"ports: [{'9' * 900}]", "999...', which is not a port"),
        ("ports: [22, 8888]", f"ports: [{'9' * 5000}]", "is longer than 1000 letters; shorten it"),
        ("ports: [22/tcp, 8888/http]", "ports: [65536/tcp]", "give one up to 65535"),
        ("ports: [22/tcp, 8888/http]", "ports: [22/tcp, 22/tcp]", "'22/tcp' is listed twice"),
        ("api: https://api.runpod.io", "api: https://api.runpod.io:65536", "which has no port"),
        ("api: https://api.runpod.io", "api: https://api.runpod.io:0", "which has no port"),
        ("api: https://api.runpod.io", "api: https://me:secret@api", "is not an http or https URL"),
        ("  room: 20", "  room: 0", "which is not a number of GB; give one from 1 to 99999"),
        ("torch: [2.11.0", f"torch: [{'9' * 900}", "which does not pin a version"),
        ("torch: [2.11.0", "torch: [1!2.11.0", "which cannot stand in a tag"),
        ("torch: [2.11.0", "torch: [2026-01-01", "must be text, not '2026-01-01'"),
        ("torch: [2.11.0", "torch: [.nan", "does not pin a version"),
        ("      version: 2.12.0a0", "      version: v2.12", "is not how PEP 440 writes it; write 2.1"),
        ("      version: 2.12.0a0", "      version: 2.12+x", "names a local version; write 2.12"),
        ("release: 12.8.", "release: 13.0.", "which is not a release of CUDA 12.8 like 12.8.1"),
        ("release: 12.8.", "release: ../x", "which is not a release of CUDA 12.8 like 12.8.1"),
        ('floor: "525"', 'floor: "580"', "'580', which is newer than the driver 570.26"),
        ('compat: ["470",', 'compat: ["470", "470",', "'470' is listed twice"),
        ('targets: ["5.0", ', 'targets: ["5.0", "5.0", ', "'5.0' is listed twice"),
        ('    "12.0": "525"', '    "12.x": "525"', "'12.x' is not a CUDA version like 12.8"),
        # Requirements.
        ("wheels: [jupyterlab>=4]", "wheels: ['a; (((((((((((os_name==\"x\"']", "has a marker or"),
        ("wheels: [jupyterlab>=4]", f"wheels: ['a; {'(' * 190}']", "has a marker or parentheses"),
        ("wheels: [jupyterlab>=4]", f"wheels: ['a=={'9' * 900}']", "is longer than 200 letters"),
        ("wheels: [jupyterlab>=4]", "wheels: [a===x]", "which is not acceptable here"),
        ("wheels: [jupyterlab>=4]", "wheels: [a>=1, A<2]", "names a twice, as 'a>=1' and 'A<2'"),
        ("wheels: [jupyterlab>=4]", "wheels: [-r/etc/passwd]", "is not a requirement"),
        ("packages: [numpy, pip", "packages: [numpy, Pip, pip", "names pip twice"),
        ("replaces: [cuda-bindings]", "replaces: [Cuda_Bindings]", "is not the name of a wheel"),
        ('arches: ["8.0"', 'arches: ["8"', "'8' is not a compute capability"),
        # What must not be empty.
        (f"targets: {TARGETS}", "targets: []", "'cuda.13.0.targets' is empty; give one entry or"),
        ("gpus: [A100, A30, A800]", "gpus: [A100, L4]", "the GPU 'L4' is listed twice; leave one"),
        ('"3.7": [K80]', '"3.7": [K80, L4]', "the GPU 'L4' is listed twice; leave one"),
        ('"3.7": [K80]', '"3.7": []', "'other-gpus.3.7' is empty"),
        ('"3.7": [K80]', '"3": [K80]', "'3' is not a compute capability"),
        ("arm64-gpus: [GH200", "arm64-gpus: [GH20", "'GH20', which is in no list of GPUs; did you"),
        ("arm64-gpus: [GH200", "arm64-gpus: [[GH200]", "'arm64-gpus[0]' must be a value, not a"),
        ("platforms: [linux/amd64, l", "platforms: [linux/amd6, l", "unknown platform 'linux/amd6'; did"),
        ("platforms: [linux/amd64, l", "platforms: [arm64, l", "unknown platform 'arm64'; did you mean"),
        ("amd64, linux/arm64]", "amd64, linux/amd64]", "'linux/amd64' is listed twice in 'platforms'"),
        ("platforms: [linux/amd64, linux/arm64]", "platforms: []", "'platforms' is empty; give one"),
        ("platforms: [linux/amd64, linux/arm64]", "platforms: [linux/amd64]", "unknown platform 'linux/arm64'"),
        ("    platform: linux/arm64\n", "    platform: linux/arm\n", "unknown platform 'linux/arm'"),
        ('arch: ["10.3", "11.0", "12.1"]', "arch: []", "is empty; give one entry or"),
        ('arch: ["10.3", "11.0", "12.1"]', 'arch: ["10.3", "11.1"]', "unknown arch '11.1'; did you"),
        ("gpus: [A100, A30, A800]", "gpus: []", "'architectures.8.0.gpus' is empty; give one"),
        ("of: [sympy]", "of: []", "'removals.always[4].of' is empty; give one entry or more"),
        ("files: [sympy/*/tests/*]", "files: []", "'removals.always[4].files' is empty"),
        ('cuda: ["12.8", "13.0"]\n      pl', 'cuda: ["12.9"]\n      pl', "unknown cuda '12.9'"),
        ("platform: [linux/amd64]\n", "platform: [amd64]\n", "unknown platform 'amd64'; did you"),
        ("wheels: [jupyterlab>=4]", "wheels: {}", "'extras.jupyter.wheels' is empty"),
        ('compat: ["470", "535", "550", "560", "565"]', "compat: []", "'cuda.12.8.compat' is empty"),
        # Text that would leave its place.
        ("nvcc-flags: -compress", "nvcc-flags: $(id) -compress", "is not a row of flags like -com"),
        ("system: debian bookworm", "system: debian", "not distribution and codename like debian"),
        ("nvidia/cuda:", "nvidia//cuda:", "is not an image with its tag"),
        ("nvidia/cuda:", "a/../cuda:", "is not an image with its tag"),
        ("registry: ghcr.io", "registry: ..", "which is not a registry"),
        ("registry: ghcr.io", "registry: 'me:secret@x'", "which is not a registry"),
        ("owner: torch-images", "owner: ' '", "'owner' must be text, it is blank; write a value"),
        ("owner: torch-images", "owner:", "'owner' must be text, it is blank; write a value"),
        ("  recsys:\n", "  -recsys:\n", "'-recsys' is not a name; use lower-case letters and"),
        ("  recsys:\n", "  a..b:\n", "'a..b' is not a name"),
        ("  recsys:\n", f"  {'a' * 25}:\n", "is too long; give one of at most 24 letters"),
        ("  recsys:\n", f"  {'a' * 101}:\n", "a key is longer than 100 letters; shorten it"),
        ("  lapack: {}", "  La pack: {}", "'La pack' is not a name"),
        ('  cuda: "13.0"\n  arch', "  cuda: all\n  arch", "unknown cuda 'all'"),
        # What YAML has beyond a tree of plain values.
        ("owner: torch", "owner: &a torch", "images.yaml:5: '&a' is not understood here; write out"),
        ("owner: torch-images", "owner: *a", "'*a' is not understood here"),
        ("owner: torch-images", "owner: &a [*a]", "'&a' is not understood here"),
        ("owner: ", "owner: !!python/object/apply:os.system ", "the tag 'tag:yaml.org,2002:python/"),
        ("pods:\n", "pods: !!python/name:os.system\n", "the tag 'tag:yaml.org,2002:python/name:os"),
        ("owner: ", "owner: !x ", "the tag '!x' is not understood here"),
        ("owner: ", "<<: {a: b}\nowner: ", "the merge key '<<' is not understood here; write the"),
        ("owner: ", "? [a, b]\n: c\nowner: ", "'a key of the file' must be a value, not a list"),
        ("owner: ", "? {a: b}\n: c\nowner: ", "'a key of the file' must be a value, not a mapping"),
        ("owner: ", "~: c\nowner: ", "'a key of the file' must be text"),
        ("owner: ", "owner: x\nowner: ", "'owner' is given twice; first at images.yaml:5"),
        ("owner: ", "owner: x\n---\nowner: ", "images.yaml:6: not valid YAML: but found another do"),
        ("owner: ", f"x: {'[' * 50_000}\nowner: ", ":5: more than 20 levels within each other"),
        ("owner: ", f"x: {'{a: ' * 15_000}\nowner: ", ":5: more than 20 levels within each other"),
        ("owner: ", f"x: {'- ' * 400}a\nowner: ", ":5: "),
        ("owner: ", f"x: [{'a, ' * 101}]\nowner: ", ":5: more than 100 entries in one place"),
        ("owner: ", f"owner: {'x' * 99_000}", "larger than 100 kB"),
        ("owner: ", "owner: a\0b", ":5: not valid YAML: a character that YAML does not allow"),
        ("owner: ", "owner: a\x1b[31mb", ":5: not valid YAML: a character that YAML does not allow"),
        ("owner: torch-images", 'owner: "a\\u202eb"', "must be one line of printable text"),
        ("owner: torch-images", 'owner: "a\\nb"', "must be one line of printable text"),
    ],
)  # fmt: skip
def test_refused_in_one_line(yaml_file: Write, old: str, new: str, expected: str) -> None:
    text = complaint(yaml_file((old, new)))
    assert text.startswith("images.yaml:")
    assert expected in text


@pytest.mark.parametrize("section", ["architectures", "cuda", "sources", "bases", "variants"])
def test_sections_that_need_an_entry(yaml_file: Write, section: str) -> None:
    text = yaml_file().read_text()
    whole = re.search(rf"^{section}:\n(?:(?:[ #].*)?\n)+", text, re.MULTILINE)
    assert whole
    path = yaml_file((whole[0], f"{section}: {{}}\n"))
    assert f": '{section}' is empty; give one entry or more" in complaint(path)


def test_two_extras_that_are_unpacked_into_each_other(yaml_file: Write) -> None:
    entry = "  other:\n    description: x\n    wheels: [a]\n    unpack: /opt/cutlass/b\n"
    path = yaml_file(
        ("extras:\n  vision:", f"extras:\n{entry}  vision:"),
        ("cutlass, cutlass-dsl", "cutlass, other"),
    )
    text = complaint(path)
    assert (
        "extras cutlass and other cannot be in one image: they are unpacked to /opt/cutlass" in text
    )


def test_folders_beside_each_other(yaml_file: Write) -> None:
    path = yaml_file(("unpack: /opt/cutlass", "unpack: /opt/venv2"))
    assert "/opt/venv2" in [extra.unpack for extra in load_config(path).extras]


def test_names_of_packages_that_look_odd(yaml_file: Write) -> None:
    named = "g++, memtest86+, libstdc++6, golang-gopkg-errgo.v2-dev, libpython3.11-dev, 0ad, xz"
    config = load_config(yaml_file(("packages: [git, make]", f"packages: [{named}]")))
    [devel] = [v for v in config.variants if v.name == "devel"]
    assert devel.packages == tuple(named.split(", "))


def test_largest_and_smallest_ports(yaml_file: Write) -> None:
    path = yaml_file(
        ("ports: [22, 8888]", "ports: [1, 65535]"), ("[22/tcp, 8888/http]", "[1/tcp, 65535/http]")
    )
    config = load_config(path)
    assert (1, 65535) in [v.ports for v in config.variants]
    assert config.pods.ports == ("1/tcp", "65535/http")


def test_a_folder_a_loop_and_a_pipe(tmp_path: Path) -> None:
    folder, loop, pipe = tmp_path / "folder.yaml", tmp_path / "loop.yaml", tmp_path / "pipe.yaml"
    folder.mkdir()
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    assert complaint(folder).startswith("folder.yaml: it is not a file; looked at ")
    assert "Too many levels of symbolic links" in complaint(loop)
    assert complaint(pipe).startswith("pipe.yaml: it is not a file; looked at ")


def test_a_name_that_is_no_path(tmp_path: Path) -> None:
    assert "File name too long" in complaint(tmp_path / ("x" * 300))


def test_the_line_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    path.write_bytes(b"registry: ghcr.io\nowner: \xff\n")
    text = "images.yaml:2: not valid YAML: not UTF-8 text; save it as UTF-8"
    assert complaint(path) == text
    path.write_text("registry: ghcr.io\n", encoding="utf-16")
    assert "not UTF-8 text" in complaint(path)


def test_the_line_of_a_character_that_yaml_does_not_allow(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    path.write_text("registry: ghcr.io\n# ü\nowner: a\0b\n")
    text = "images.yaml:3: not valid YAML: a character that YAML does not allow"
    assert complaint(path) == text


def test_depth_does_not_end_the_process(tmp_path: Path) -> None:
    """The parser in C calls itself for each level: what got through to it ended Python itself."""
    path = tmp_path / "images.yaml"
    path.write_text("[" * 90_000)
    code = "import sys, pathlib, torch_images.config.yaml_nodes as y; y.load(pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "more than 20 levels within each other; write out what is meant"
    )


def test_aliases_do_not_multiply(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{n}: &{n} [{', '.join([f'*{o}'] * 9)}]"
        for o, n in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    path.write_text("\n".join(lines))
    assert complaint(path) == "images.yaml:1: '&a' is not understood here; write out what is meant"


# Names that collide.


def base(name: str) -> tuple[str, str]:
    """A second bootstrapped base, in front of the first."""
    entry = (
        f"  {name}:\n    description: another\n    python: '3.11'\n    system: debian trixie\n"
        "    suite: trixie\n    packages: [python3]\n"
    )
    return "bases:\n", f"bases:\n{entry}"


def variants(*names: str) -> tuple[str, str]:
    """More variants, each with packages of its own."""
    entries = [f"  {n}:\n    description: more\n    packages: [lib{n}]\n" for n in names]
    return "variants:\n", "variants:\n" + "".join(entries)


@pytest.mark.parametrize(
    ("replacements", "expected"),
    [
        (
            (base("bookworm-x"), variants("q", "x-q")),
            "variant 'q' with base 'bookworm-x' and variant 'x-q' with base 'bookworm' share the "
            f"identifier cu128-torch{T128}-bookworm-x-q",
        ),
        (
            (base("x"), variants("q", "q-x")),
            "variant 'q' with base 'x' and variant 'q-x' with base 'bookworm' share the tag "
            "torch-cu128:all-q-x",
        ),
        (
            (variants("ubuntu24.04"),),
            "variant 'ubuntu24.04' with base 'bookworm' and variant 'runtime' with base "
            "'ubuntu24.04' share the tag torch-cu128:all-ubuntu24.04",
        ),
        (
            (variants("fork"), ("exclude:\n", "exclude:\n  - {base: ubuntu24.04, reason: x}\n")),
            "variant 'fork' with source 'wheel' and variant 'runtime' with source 'fork' share the "
            "tag torch-cu128:all-fork",
        ),
        (
            (base("ubuntu24.04-cu128"),),
            "base 'ubuntu24.04-cu128' and base 'ubuntu24.04' share the lock "
            "base-ubuntu24.04-cu128, but do not ask for the same",
        ),
        (
            (base("cu128-torch2.10.0-py311"), ("exclude:\n", "exclude:\n  - {variant: pod, source: fork, reason: x}\n")),
            "base 'cu128-torch2.10.0-py311' and base 'cu128-torch2.10.0-py311' share the lock",
        ),
        (
            (("    like: fork\n", "    like: fork\n    packages: [git, libeigen3-dev, make, patch]\n"),),
            "source 'fork' and source 'fork-slim' share the lock build-fork-bookworm, but do not "
            "ask for the same",
        ),
    ],
)  # fmt: skip
def test_names_that_would_stand_for_two_things(
    yaml_file: Write, replacements: tuple[tuple[str, str], ...], expected: str
) -> None:
    text = complaint(yaml_file(*replacements))
    assert re.match(r"images.yaml:[0-9]+: ", text)
    assert expected in text
    assert text.endswith("; rename one, or exclude it")


def test_an_exclude_parts_names_that_would_collide(yaml_file: Write) -> None:
    rule = "  - {base: bookworm-x, reason: for the test}\n"
    rules = ("exclude:\n", f"exclude:\n{rule}")
    path = yaml_file(base("bookworm-x"), variants("q", "x-q"), rules)
    assert "bookworm-x" in load_config(path).names("base")


def test_too_many_combinations_are_refused_before_they_are_made(yaml_file: Write) -> None:
    more = [f"v{number}" for number in range(80)]
    text = complaint(yaml_file(variants(*more)))
    assert "images.yaml:" in text
    axes = "cuda, torch, arch, source, base, variant, platform"
    assert re.search(rf"[0-9]{{5}} combinations of {axes}; remove some, so that 20000", text)


def test_an_exclude_of_one_variant_does_not_excuse_the_others(yaml_file: Write) -> None:
    rule = '  - {cuda: "13.0", arch: "6.1", variant: recsys, reason: dropped in CUDA 13}\n'
    path = yaml_file(('  "8.0":', PASCAL), ("exclude:\n", "exclude:\n" + rule))
    assert "CUDA 13.0 cannot target 6.1" in complaint(path)


@pytest.mark.parametrize(
    "image",
    ["127.0.0.1:5000/standin/cuda:13.0.2", "ghcr.io/me/my_cuda__x:v1", "debian:bookworm-slim"],
)
def test_images_of_any_registry(yaml_file: Write, image: str) -> None:
    path = yaml_file(("nvidia/cuda:13.0.2-devel-ubuntu24.04", image))
    [ubuntu] = [base for base in load_config(path).bases if base.images]
    assert ubuntu.image("13.0") == image
