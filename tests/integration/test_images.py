"""The images that a build gives, used as users use them."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.integration.support import SELECT, Built, invoke, quiet
from tests.releases import T128, T130
from torch_images.build.limits import limits
from torch_images.config.matrix import choose
from torch_images.config.types import Config
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.layers.parent import PARENT_IMAGES
from torch_images.locks.debs import read_debs
from torch_images.locks.wheels import read_wheels
from torch_images.verify.identify import identify

CUDA = {"cu130": "13.0", "cu128": "12.8"}
TORCH = {"cu130": T130, "cu128": T128}
PRINT = "import torch; print(torch.__version__, torch.version.cuda)"


def locked(locks: Path, cuda: str) -> dict[str, str]:
    """What is in the plain image of a CUDA version: wheels and Debian packages, with versions."""
    wheels = read_wheels(locks / f"wheel-{cuda}-torch{TORCH[cuda]}-py311.txt").wheels
    debs = read_debs(locks / "base-bookworm.txt").versions()
    return {**debs, **{wheel.name: wheel.version for wheel in wheels}}


@pytest.mark.parametrize("cuda", CUDA)
def test_versions(built: dict[str, Built], engine: Engine, locks: Path, cuda: str) -> None:
    done = engine.run(f"torch-{cuda}:sm120", "python", "-c", PRINT, **quiet())
    torch = locked(locks, cuda)["torch"]
    assert (done.code, done.output.strip()) == (0, f"{torch}+{cuda} {CUDA[cuda]}")


@pytest.mark.parametrize("cuda", CUDA)
def test_tags_point_at_what_was_verified(
    built: dict[str, Built], engine: Engine, cuda: str
) -> None:
    image = built[cuda]
    assert f"torch-{cuda}:sm120" in image.tags
    assert {engine.inspect(tag).id for tag in image.tags} == {image.digest}
    assert image.observed["arch 12.0"] == "native sm_120"
    assert image.checks["failed"] == 0
    assert image.checks["passed"] > 150
    assert not engine.tags(f"torch-images-candidate:{image.id}")


def test_without_a_command_it_says_what_it_is(
    built: dict[str, Built], config: Config, engine: Engine, locks: Path
) -> None:
    held = locked(locks, "cu130")
    major, minor, patch, *_ = map(int, held["nvidia-cudnn-cu13"].split("."))
    python = held["python3.11-minimal"].partition("-")[0]
    done = engine.run(built["cu130"].tags[0], **quiet())
    assert done.code == 0
    assert done.output.splitlines() == [
        f"PyTorch {held['torch']}+cu130  CUDA 13.0  Triton {held['triton']}"
        f"  cuDNN {major * 10000 + minor * 100 + patch}  Python {python}",
        "architectures: sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
        "GPUs: no GPU visible",
        *limits(choose(config, cuda="13.0"))["7.5"],
    ]


def test_summary_as_json(built: dict[str, Built], engine: Engine, locks: Path) -> None:
    done = engine.run(built["cu130"].tags[0], "torch-info", "--json", **quiet())
    assert json.loads(done.output)["torch"] == f"{locked(locks, 'cu130')['torch']}+cu130"


@pytest.mark.parametrize(
    "options", [{}, {"user": "1000:1000"}, {"read_only": True}], ids=["root", "user", "read-only"]
)
def test_starts_and_passes_the_exit_code(
    built: dict[str, Built], engine: Engine, options: dict[str, object]
) -> None:
    command = ("python", "-c", "import torch, sys; sys.exit(int(torch.arange(8).sum()) - 21)")
    assert engine.run(built["cu130"].tags[0], *command, **quiet(**options)).code == 7


def records(engine: Engine, image: str) -> dict[str, str]:
    """What the RECORDs of an image's wheels say of each file."""
    command = "cd /opt/venv/lib/python3.11/site-packages && cat *.dist-info/RECORD"
    done = engine.run(image, "sh", "-c", command, **quiet())
    assert done.code == 0, done.output[-1000:]
    return {line.partition(",")[0]: line for line in done.output.splitlines()}


@pytest.mark.slow
def test_a_pruned_image_has_lost_machine_code(
    built: dict[str, Built], config: Config, engine: Engine
) -> None:
    """Verification found code for its architecture alone, and nothing that is missed on a CPU."""
    done = invoke("build", "--cuda", "13.0", "--arch", "9.0", "--prune", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    [image] = json.loads(done.stdout)
    try:
        assert engine.inspect(image["digest"]).labels["io.github.torch-images.pruned"] == "yes"
        assert image["observed"]["arch 9.0"] == "native sm_90"
        assert image["checks"]["failed"] == 0
        path = "torch/lib/libtorch_cuda.so"
        size = f"import os, torch; print(os.stat(torch.__path__[0] + '/../{path}').st_size)"
        printed = engine.run(image["tags"][0], "python", "-c", size, **quiet())
        assert int(printed.output) < 228_000_000  # half of what the wheel has
        # Verification held the files against their RECORDs; these differ where pruning says so.
        ours, plain = (records(engine, x) for x in (image["digest"], built["cu130"].digest))
        removals = [r for r in config.removals if r.prune]
        named = [glob for r in removals for glob in (*r.files, *r.code, *r.symbols)]
        changed = {name for name in ours | plain if ours.get(name) != plain.get(name)}
        assert "torch/lib/libtorch_cuda.so" in changed
        assert {n for n in changed if not any(fnmatchcase(n, glob) for glob in named)} == set()
    finally:
        for tag in image["tags"]:
            engine.untag(tag)


def test_building_again_changes_nothing(built: dict[str, Built]) -> None:
    done = invoke("build", "--select", SELECT, "--json")
    assert done.returncode == 0, done.stderr
    assert {o["digest"] for o in json.loads(done.stdout)} == {i.digest for i in built.values()}


def test_an_image_that_lost_its_tag_is_found(engine: Engine, runner: Runner) -> None:
    """`invoke gc --images` removes what newer builds have left without a name."""
    label, names = "io.github.torch-images.id", ("torch-images-test:old", "torch-images-test:new")

    def untagged() -> set[str]:
        return {image.id for image in engine.ours(label, PARENT_IMAGES) if not image.tags}

    for name in names:
        recipe = f"FROM scratch\nLABEL {label}=test name={name}\nCOPY <<x /x\nx"
        command = ["docker", "buildx", "build", "--provenance=false", "--tag", name, "-"]
        runner.run(command, stdin=recipe)
    old, new = (engine.inspect(name).id for name in names)
    try:
        engine.tag(new, *names[0].split(":"))
        assert {old, new} & untagged() == {old}
    finally:
        for reference in (old, *names):
            engine.untag(reference)
    assert not {old, new} & untagged()


def test_gpus_where_the_engine_has_none(built: dict[str, Built]) -> None:
    """Its own words and a hint, in one line; where it has some, the whole suite passes on them."""
    done = invoke("verify", built["cu130"].digest, "--gpus", "all")
    if done.returncode == 0:
        return
    assert done.returncode == 4, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: the engine gives no GPU: ")
    assert "; install nvidia-container-toolkit; " in last


@pytest.mark.parametrize("name", [f"cu130-sm120-torch{T130}-trixie-runtime", "torch-cu130:sm120"])
def test_verify_finds_an_image_by_any_name(
    built: dict[str, Built], config: Config, workspace: Workspace, engine: Engine, name: str
) -> None:
    reference, planned = identify(config, name, workspace, engine)
    assert planned.spec.id == built["cu130"].id
    assert engine.inspect(reference).id == built["cu130"].digest


def test_an_identifier_names_the_latest_build(
    built: dict[str, Built], config: Config, workspace: Workspace, engine: Engine, runner: Runner
) -> None:
    """Also beside an older one of the same identifier, whose tag comes first in the alphabet."""
    name = "torch-cu130:0-older-build"
    recipe = f"FROM scratch\nLABEL io.github.torch-images.id={built['cu130'].id}\nCOPY <<x /x\nx"
    command = ["docker", "buildx", "build", "--provenance=false", "--tag", name, "-"]
    runner.run(command, stdin=recipe)
    try:
        reference, _ = identify(config, built["cu130"].id, workspace, engine)
        assert engine.inspect(reference).id == built["cu130"].digest
    finally:
        engine.untag(name)
