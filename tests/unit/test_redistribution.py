"""Which files of NVIDIA's may be published: real wheels' files against real licences' lists."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torch_images.cli import publish_tasks, verb
from torch_images.config.parse import load_config
from torch_images.config.types import Accepted, Config
from torch_images.errors import ConfigError, PublishError, VerifyError
from torch_images.publish import redistribution
from torch_images.publish.datasheet import markdown
from torch_images.publish.push import Preview
from torch_images.publish.redistribution import (
    COMPAT,
    TOOLKIT,
    Package,
    Verdict,
    is_public,
    judge,
    packages_of,
    require,
)
from torch_images.publish.terms import CUDA, TERMS

SITE = "/opt/venv/lib/python3.11/site-packages"
EULA = CUDA.texts[0]


def recorded() -> dict[str, Package]:
    """The packages of records.txt, by name and version."""
    found: dict[str, Package] = {}
    key = licence = ""
    rows: dict[str, list[tuple[str, str]]] = {}
    licences: dict[str, str] = {}
    for line in Path(__file__).with_name("records.txt").read_text().splitlines():
        if line.startswith("["):
            key, _, licence = line[1:].partition("] ")
            rows[key], licences[key] = [], licence
        elif not line.startswith("#"):
            path, _, text = line.partition(",")
            rows[key].append((path, text.removeprefix("sha256=")))
    for key, files in rows.items():
        found[key] = Package(name=key.split()[0], licences=(licences[key],), files=tuple(files))
    return found


REAL = recorded()


def package(name: str, *files: str, licence: str = "unknown", text: str = "") -> Package:
    held = [(path, "") for path in files]
    if text:
        held.append((f"{name.replace('-', '_')}-1.dist-info/licenses/LICENSE", text))
    return Package(name=name, licences=(licence,), files=tuple(held))


def unlisted(*packages: Package) -> list[str]:
    return [f.path.rpartition("/")[2] for f in judge(packages).unlisted]


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("nvidia-nccl-cu13 2.30.7", True),
        ("nvidia-nvtx 13.0.85", True),
        ("nvidia-cudnn-cu13 9.24.0.43", True),
        ("nvidia-cusparselt-cu13 0.8.1", True),
        ("nvidia-cufile 1.15.1.6", True),
        ("cuda-bindings 12.9.4", True),
        # Open source, whose licence says enough: no file is NVIDIA's property.
        ("cuda-bindings 13.5.0", False),
        ("cuda-pathfinder 1.9.0", False),
        ("nvidia-cudnn-frontend 1.32.0", False),
    ],
)
def test_packages_that_may_be_published_whole(name: str, *, listed: bool) -> None:
    verdict = judge([REAL[name]])
    assert not verdict.unlisted
    assert bool(verdict.listed) == listed


@pytest.mark.parametrize(
    ("name", "names"),
    [
        (
            "nvidia-cuda-nvcc 13.0.88",
            "__nvcc_device_query bin2c link.stub prelink.stub cudafe++ fatbinary nvcc "
            "nvcc.profile nvlink ptxas fatbinary_section.h",
        ),
        ("nvidia-nvvm 13.0.88", "nvvm.h cicc"),
        ("nvidia-cuda-nvrtc 13.0.88", "libnvrtc-builtins.alt.so.13.0 libnvrtc.alt.so.13"),
        ("nvidia-nvjitlink 13.5.37", "nvJitLink.h"),
        ("nvidia-nvml-dev 13.0.87", "nvml.h"),
        ("nvidia-cusparse 12.6.3.3", "cusparse.h cusparse_v2.h"),
        ("torchcodec 0.17.0", "libnvjpeg-1a359ba7.so.13.0.1.86"),
    ],
)
def test_files_that_no_licence_lists(name: str, names: str) -> None:
    assert sorted(unlisted(REAL[name])) == sorted(names.split())


@pytest.mark.parametrize(
    ("name", "libraries"),
    [
        ("nvidia-cublas 13.1.1.3", 3),
        ("nvidia-cufft 12.0.0.61", 2),
        ("nvidia-curand 10.4.0.35", 1),
        ("nvidia-cusolver 12.0.4.66", 1),
        ("nvidia-cusparse 12.6.3.3", 1),
        ("nvidia-nvjitlink 13.5.37", 1),
    ],
)
def test_libraries_are_listed_with_their_versions(name: str, libraries: int) -> None:
    files = {path for path, _ in REAL[name].files if "/lib/" in path}
    found = judge([REAL[name]])
    left = files - {f.path for f in found.unlisted}
    assert len(left) == libraries
    assert {f.rpartition("/")[2] for f in files - left} <= {"libcusolverMg.so.12"}


def test_tools_of_nvidia_inside_triton() -> None:
    """Triton's own licence is MIT; what it copies of NVIDIA's is held to NVIDIA's list."""
    verdict = judge([REAL["triton 3.8.0"]])
    counts = Counter(f.path.rpartition("/")[0] for f in verdict.unlisted)
    assert counts["triton/backends/nvidia/bin"] == 4
    names = unlisted(REAL["triton 3.8.0"])
    assert {"ptxas", "ptxas-blackwell", "nvdisasm", "cuobjdump", "cuda_runtime.h"} <= set(names)
    assert not {"libdevice.10.bc", "libcupti.so.2025.1.1", "cuda.h", "compiler.py"} & set(names)
    assert verdict.listed > 20


def test_cccl_has_its_own_licence_and_nvshmem_none() -> None:
    cccl = judge([REAL["nvidia-cuda-cccl 13.0.85"]])
    assert all("/cccl/" not in f.path.partition("lib/cmake")[0] for f in cccl.unlisted)
    assert cccl.listed > 10
    nvshmem = judge([REAL["nvidia-nvshmem-cu13 3.4.5"]])
    assert (nvshmem.listed, len(nvshmem.unlisted)) == (0, 59)


def test_the_text_decides_and_not_the_name() -> None:
    path = "thing/libcublasXt.so.13"
    assert unlisted(package("thing", path, licence="MIT", text=EULA)) == ["libcublasXt.so.13"]
    assert not unlisted(package("nvidia-thing", path, licence="Apache-2.0"))
    for licence, name in (("unknown", "nvidia-x"), ("LicenseRef-NVIDIA-Proprietary", "x")):
        [found] = judge([package(name, path, licence=licence)]).unlisted
        assert found.why == "its package carries no licence that this project has read"
    assert not unlisted(package("x", path, licence="unknown"))


@pytest.mark.parametrize(
    ("path", "listed"),
    [
        ("a/libcublas.so", True),
        ("a/libcublas.so.13.1.0", True),
        ("a/libcublas.so.13.debug", False),
        ("a/libcublas-13.so", False),
        ("a/mylibcublas.so", False),
        ("a/libcublas.so.13/x.h", False),
        ("a/crt/host_defines.h", True),
        ("a/host_defines.h", False),
        ("a/cuda/std/tuple", True),
        ("a/cuda_fp4.hpp", True),
        ("a/ptxas", False),
    ],
)
def test_what_attachment_a_lists(path: str, *, listed: bool) -> None:
    assert CUDA.lists(path) == listed


def test_each_text_has_one_list() -> None:
    texts = Counter(text for terms in TERMS for text in terms.texts)
    assert set(texts.values()) == {1}


def test_what_images_yaml_answers_for() -> None:
    held = package("nvidia-x", "x/bin/ptxas", "x/bin/nvlink", "x/libcublas.so.13", text=EULA)
    other = package("nvidia-y", "x/bin/ptxas", text=EULA)
    answer = Accepted(packages=("nvidia-x",), files=("x/bin/p*",), reason="agreement 7")
    verdict = judge([held, other], [answer])
    assert verdict.listed == 1
    assert [(f.package, f.path, f.why) for f in verdict.accepted] == [
        ("nvidia-x", "x/bin/ptxas", "agreement 7")
    ]
    assert [(f.package, f.path) for f in verdict.unlisted] == [
        ("nvidia-x", "x/bin/nvlink"),
        ("nvidia-y", "x/bin/ptxas"),
    ]
    assert verdict.document()["accepted"] == {"nvidia-x: agreement 7": 1}
    assert verdict.document()["unlisted"] == {"nvidia-x": 1, "nvidia-y": 1}


def test_the_refusal_is_one_line_with_files_and_a_way() -> None:
    with pytest.raises(PublishError) as caught:
        require(judge(REAL.values()))
    text = str(caught.value)
    assert text.isprintable()
    assert text.startswith("a public registry may not get this image: no licence lists ")
    assert "(triton 146, nvidia-cuda-runtime 68, " in text
    assert "packages more), such as nvidia/cu13/include/" in text
    assert "docs/licenses.md" in text
    assert "--private" in text
    assert "`redistribution` of images.yaml" in text
    require(judge([REAL["nvidia-nccl-cu13 2.30.7"]]))


@pytest.mark.parametrize(
    ("namespace", "public"),
    [
        ("ghcr.io/me", True),
        ("registry.example.org:5000/me", True),
        ("10.1.2.3:5000/me", True),
        ("127.0.0.1:5000/me", False),
        ("127.0.0.1/me", False),
        ("[::1]:5000/me", False),
        ("localhost:5000/me", False),
        ("localhost/me", False),
        ("localhost.example.org/me", True),
        ("127.0.0.1.example.org/me", True),
        ("me", True),
    ],
)
def test_only_this_machine_is_not_public(namespace: str, *, public: bool) -> None:
    assert is_public(namespace) == public


def bill(*parts: tuple[str, Any]) -> str:
    components = [
        {"name": name, "purl": f"pkg:pypi/{name}@1", "licenses": licences}
        for name, licences in parts
    ]
    return json.dumps({"components": [*components, {"name": "libc6", "purl": "pkg:deb/d/libc6@2"}]})


def test_an_image_says_what_it_holds() -> None:
    folder = f"{SITE}/nvidia_x.y-1.0.dist-info/RECORD"
    listing = (
        f"{folder}\0nvidia/lib/libx.so.1,sha256=abc,12\n"
        f'{folder}\0"nvidia/a, b.h",,\n'
        f"{folder}\0\n"
        "/opt/cutlass/nvidia_cutlass-4.2.dist-info/RECORD\0include/a.h,sha256=def,1\n"
        "/opt/cuda-compat/13.0/libcuda.so.580.95.05\0\n"
        "/usr/local/cuda-12.8/bin/nvcc\0\n"
        "/usr/local/cuda-13.0/lib64/stubs/libcuda.so\0\n"
    )
    found = packages_of(
        listing,
        bill(
            ("nvidia-x-y", [{"license": {"name": "NVIDIA Proprietary Software"}}]),
            ("nvidia_cutlass", [{"expression": "BSD-3-Clause"}]),
        ),
    )
    assert found == (
        Package(
            name=COMPAT, licences=(), files=(("opt/cuda-compat/13.0/libcuda.so.580.95.05", ""),)
        ),
        Package(name=TOOLKIT, licences=(), files=(("usr/local/cuda-12.8/bin/nvcc", ""),)),
        Package(name="nvidia-cutlass", licences=("BSD-3-Clause",), files=(("include/a.h", "def"),)),
        Package(
            name="nvidia-x-y",
            licences=("NVIDIA Proprietary Software",),
            files=(("nvidia/lib/libx.so.1", "abc"), ("nvidia/a, b.h", "")),
        ),
    )


def test_compat_library_and_toolkit_are_held_to_the_list() -> None:
    compat = package(COMPAT, "opt/c/libcuda.so.580.95.05", "opt/c/libnvidia-gpucomp.so.580.95.05")
    assert unlisted(compat) == ["libnvidia-gpucomp.so.580.95.05"]
    assert unlisted(package(TOOLKIT, "usr/local/cuda-12.8/bin/nvcc")) == ["nvcc"]


@pytest.mark.parametrize(
    ("listing", "text"),
    [
        ("", '{"components": []}'),
        ("/x.dist-info/RECORD\0a,b\n", "no JSON"),
        (f"{SITE}/a-1.dist-info/RECORD\0a,b\n", "[]"),
        (f"{SITE}/a-1.dist-info/RECORD\0a,b\n", '{"components": [{"purl": "pkg:pypi/a"}]}'),
        (f"{SITE}/a-1.dist-info/RECORD\0a,b\n", '{"components": [7]}'),
    ],
)
def test_an_image_that_does_not_say_what_it_holds(listing: str, text: str) -> None:
    with pytest.raises(VerifyError):
        packages_of(listing, text)


def test_images_yaml_says_by_what_right(yaml_file: Callable[..., Path]) -> None:
    added = (
        "redistribution:\n  accept:\n    - of: [triton, cuda-compat]\n"
        "      files: [triton/backends/nvidia/bin/*]\n      reason: agreement 7\n\npods:"
    )
    [accepted] = load_config(yaml_file(("\npods:", f"\n{added}"))).accepted
    assert accepted.packages == ("triton", "cuda-compat")
    assert accepted.files == ("triton/backends/nvidia/bin/*",)
    assert accepted.reason == "agreement 7"
    for old, new, problem in (
        ("reason: agreement 7", "why: x", "unknown key 'redistribution.accept[0].why'"),
        ("[triton, cuda-compat]", "[Triton]", "'Triton' is not the name of a wheel; write triton"),
        ("triton/backends/nvidia/bin/*", "../x", "is not a path below site-packages"),
        ("  accept:", "  accepts:", "unknown key 'redistribution.accepts'"),
    ):
        with pytest.raises(ConfigError, match=r"images\.yaml:[0-9]+: ") as caught:
            load_config(yaml_file(("\npods:", "\n" + added.replace(old, new))))
        assert problem in str(caught.value)


def test_this_project_answers_for_nothing(config: Config) -> None:
    """Whoever publishes decides, and no one has yet; see docs/licenses.md."""
    assert config.accepted == ()


def test_the_page_names_each_licence_and_the_files_of_wheels(root: Path) -> None:
    page = (root / "docs" / "licenses.md").read_text()
    for terms in TERMS:
        assert f"| {terms.name} | {terms.source} |" in page
    for key, held in REAL.items():
        verdict = judge([held])
        if verdict.unlisted and key != "nvidia-cuda-cccl 13.0.85":
            row = f"| `{key.replace(' ', '` ')} | {verdict.listed} | {len(verdict.unlisted)} |"
            assert row in page, row


SHEET = {
    "id": "x", "digest": "sha256:1", "platform": "linux/amd64", "references": [], "index": "", "versions": {}, "arches": {}, "features": [],
    "driver": {"native": "1"}, "compat": "", "inputs": "", "unlocked": False, "lock": "",
    "revision": "", "size": {"compressed": 0, "unpacked": 0}, "layers": [],
    "verification": {"passed": 1, "skipped": 0},
}  # fmt: skip


def test_the_datasheet_shows_it() -> None:
    verdict = Verdict(listed=3).document()
    assert "| Redistribution | 3 files of NVIDIA's are listed as distributable |" in markdown(
        {**SHEET, "redistribution": verdict}
    )
    assert "| Redistribution | not checked |" in markdown({**SHEET, "redistribution": None})


@pytest.mark.parametrize(
    ("words", "asked", "sent"),
    [
        ({"registry": "ghcr.io/me"}, True, False),
        ({"registry": "ghcr.io/me", "private": True}, False, True),
        ({"registry": "127.0.0.1:5000/me"}, False, True),
        ({"registry": "ghcr.io/me", "dry_run": True}, True, False),
    ],
)
def test_a_push_asks_before_anything_leaves(
    monkeypatch: pytest.MonkeyPatch, words: dict[str, Any], *, asked: bool, sent: bool
) -> None:
    calls: list[str] = []

    def read_packages(image: str, engine: object) -> list[Package]:
        calls.append(f"asked {image}")
        return [REAL["nvidia-cuda-nvcc 13.0.88"]]

    class SentError(Exception):
        pass

    def publish(*_: object, **__: object) -> None:
        calls.append("sent")
        raise SentError

    subject = SimpleNamespace(info=SimpleNamespace(id="sha256:1"))
    monkeypatch.setattr(verb, "engine", lambda: None)
    monkeypatch.setattr("torch_images.verify.identify.verified_image", lambda *_: subject)
    monkeypatch.setattr("torch_images.publish.push.preview", lambda *_, **__: Preview(own=()))
    monkeypatch.setattr("torch_images.publish.push.publish", publish)
    monkeypatch.setattr(redistribution, "read_packages", read_packages)
    body = getattr(publish_tasks.push.body, "__wrapped__", publish_tasks.push.body)
    with pytest.raises(SentError if sent else PublishError):
        body(None, "x", **words)
    assert ("asked sha256:1" in calls) == asked
    assert ("sent" in calls) == sent
