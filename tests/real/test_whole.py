"""Real PyTorch through the compile stages to the end: `.venv/bin/python -m pytest tests/real`.

It takes hours, unless the compile cache has the units already: what is compiled stays there, so a
run that was stopped goes on. What it found is in build/real-source. Nothing else may use the
compile cache meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import ROOT, invoke
from tests.real import compare, lane, tree
from torch_images.fetch.download import is_file
from torch_images.fetch.packageindex import PackageIndex
from torch_images.host.network import detect
from torch_images.host.workspace import default_cache
from torch_images.locks.wheels import LockedWheel

REPORT = ROOT / "build" / "real-source"
# The published wheel of the same release; its CUDA is 12.4.
PUBLISHED = LockedWheel(
    name="torch",
    version="2.6.0",
    filename="torch-2.6.0-cp313-cp313-manylinux1_x86_64.whl",
    size=766626191,
    sha256="4874a73507a300a5d089ceaff616a569e7bb7c613c56f37f63ec3ffac65259cf",
)
WHEELS = ("wheels", "--source", "debian", "--skip-disk-check")
# What images.yaml leaves out, by the names of features.json.
WITHOUT = {"fbgemm", "magma"}
CHANGED = "aten/src/ATen/native/Linear.cpp"
# caffe2/core/macros.h has the commit, and seven units of libtorch_cpu.so include it.
TOLD_UNITS = 7
# Files that tell which commit was compiled, or have the hashes of others.
TOLD = {"METADATA", "RECORD", "libtorch_cpu.so", "version.py"}
# Removes results from the compile cache.
FORGET = """FROM {image}
USER root
RUN --mount=type=cache,id=torch-images-compile,target=/cache,sharing=locked \\
    yes {seed} | head --bytes=100000 >/seed && find /cache/ccache -type f -name '*R' | sort \\
    | shuf --random-source=/seed --head-count={count} | xargs rm --verbose | wc --lines
"""


@dataclass(frozen=True)
class Made:
    """A wheel of torch that was made, in how many seconds, and what was said on the way."""

    wheel: Path
    seconds: float
    said: str

    @property
    def missed(self) -> int:
        """How many compilations the compile cache did not have."""
        [line] = re.findall(r"torch: compile cache hits: (.*)", self.said)
        return sum(int(all_) - int(hit) for hit, all_ in re.findall(r"(\d+) of (\d+)", line))


def make(env: dict[str, str], folder: Path, *words: str) -> Made:
    """Compile the tree into a wheel, with what the compile cache has of it."""
    started = time.monotonic()
    done = invoke(*WHEELS, "--output", str(folder), *words, env=env)
    seconds = time.monotonic() - started
    (REPORT / f"{folder.name}.log").write_text(f"{done.stderr}\n{seconds:.0f} seconds\n")
    assert done.returncode == 0, done.stderr[-3000:]
    [wheel] = folder.glob("torch-*.whl")
    return Made(wheel, seconds, done.stderr)


def published(folder: Path) -> Path:
    """The published wheel, fetched into a folder if it is not there."""
    path = folder / PUBLISHED.filename
    if not is_file(PUBLISHED, path):
        with PackageIndex(detect(os.environ)) as index:
            index.fetch(PUBLISHED, folder)
    return path


def another(folder: Path, commit: str = "", option: str = "") -> dict[str, str]:
    """A copy of images.yaml and its locks, for another commit of the tree or with one more option."""
    shutil.copytree(
        lane.CONFIG.parent, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__")
    )
    [old] = re.findall(r"commit: ([0-9a-f]{40})", lane.CONFIG.read_text())
    for path in (folder / "images.yaml", folder / "locks" / "source-debian.json"):
        text = path.read_text().replace("    torch-options:\n", f"    torch-options:\n{option}")
        path.write_text(text.replace(old, commit or old))
    return {"TORCH_IMAGES_CONFIG": str(folder / "images.yaml")}


def forget(image: str, count: int, seed: str) -> None:
    """Remove that many objects, chosen by the seed, from the compile cache of this engine.

    Not with --no-cache: BuildKit then makes a new, empty cache mount and drops the old one.
    """
    recipe = FORGET.format(image=image, count=count, seed=seed)
    command = ["docker", "buildx", "build", "--progress=plain", "-"]
    done = subprocess.run(
        [*command, "--output=type=cacheonly"],
        input=recipe,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^#\d+ \S+ {count}$", done.stderr, re.MULTILINE), done.stderr


def differing(first: Path, second: Path) -> set[str]:
    """The names of files that are not equal in two wheels; their versions may differ."""
    both = [
        {re.sub(r"^torch-[^/]+", "torch", path): digest for path, digest in hashed.items()}
        for hashed in map(compare.hashes, (first, second))
    ]
    assert both[0].keys() == both[1].keys()
    return {Path(path).name for path, digest in both[0].items() if both[1][path] != digest}


@pytest.fixture(scope="module")
def env() -> Iterator[dict[str, str]]:
    """What verbs need to build from the real tree."""
    REPORT.mkdir(parents=True, exist_ok=True)
    with lane.lane() as found:
        yield found


@pytest.fixture(scope="module")
def made(env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(env, tmp_path_factory.mktemp("whole") / "whole")


@pytest.fixture(scope="module")
def image(env: dict[str, str], made: Made) -> dict[str, Any]:
    """The image with that wheel, as `build --json` describes it."""
    assert made.wheel
    done = invoke("build", "--source", "debian", "--skip-disk-check", "--json", env=env)
    (REPORT / "image.log").write_text(done.stderr)
    assert done.returncode == 0, done.stderr[-3000:]
    [built] = json.loads(done.stdout)["images"]
    (REPORT / "image.json").write_text(json.dumps(built, indent=1))
    return dict(built)


def test_the_image_passes_verification(image: dict[str, Any]) -> None:
    assert image["checks"]["passed"]
    assert not image["checks"].get("failed")


def test_it_has_what_the_published_wheel_has(made: Made, tmp_path: Path) -> None:
    wheels = (made.wheel, published(default_cache() / "real-source"))
    found = compare.compare(wheels, tmp_path)
    (REPORT / "compared.json").write_text(json.dumps(found, indent=1))
    (REPORT / "compared.md").write_text(compare.table(found) + "\n")
    # The published wheel, for CUDA 12.4, was compiled without cuFile.
    assert set(found["features"]["ours"]) == {"cufile"}
    assert set(found["features"]["theirs"]) <= WITHOUT
    for name, library in found["libraries"].items():
        ours, theirs = library["code"]
        assert set(ours) <= {"sm_90", "sm_90a"}
        # All code of the library for linear algebra is MAGMA's.
        assert bool(ours) == (bool(theirs) and name != "libtorch_cuda_linalg.so")


def test_after_one_changed_file_one_is_compiled(
    env: dict[str, str], made: Made, tmp_path: Path
) -> None:
    old = "#include <ATen/native/"
    commit = tree.change(lane.repository(), CHANGED, old, f"\n\n{old}", "one-file")
    again = make(env | another(tmp_path / "project", commit), tmp_path / "one-file")
    assert again.missed == TOLD_UNITS + 1


def test_another_commit_with_equal_files_compiles_what_tells_it(
    env: dict[str, str], made: Made, tmp_path: Path
) -> None:
    commit = tree.change(lane.repository(), "", "", "", "equal-files")
    again = make(env | another(tmp_path / "project", commit), tmp_path / "equal-files")
    assert again.missed == TOLD_UNITS
    assert differing(made.wheel, again.wheel) == TOLD


def test_what_is_compiled_again_is_equal(
    env: dict[str, str], made: Made, image: dict[str, Any], tmp_path: Path
) -> None:
    """A hundred units at random, all that is linked, and the wheel.

    BuildKit would not compile with equal options again, and this one changes nothing.
    """
    forget(image["tags"][0], 100, seed := uuid.uuid4().hex)
    project = another(tmp_path / "project", option='      CMAKE_VERBOSE_MAKEFILE: "ON"\n')
    again = make(env | project, tmp_path / "compiled-again")
    differ = differing(made.wheel, again.wheel)
    (REPORT / "compiled-again.txt").write_text("\n".join([f"seed {seed}", *sorted(differ)]))
    assert again.missed >= 100  # more where the cache did not have all units before
    assert made.wheel.read_bytes() == again.wheel.read_bytes()
