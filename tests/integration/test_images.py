"""The images that a build gives, used as users use them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.integration.support import DEFAULT, ROOT, SITE, Built, invoke, quiet
from tests.releases import T130
from torch_images.build import built as built_here
from torch_images.build.limits import limits
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.locks.debs import DebLock
from torch_images.locks.files import read
from torch_images.locks.wheels import read_wheels
from torch_images.verify.identify import identify

PRINT = "import torch; print(torch.__version__, torch.version.cuda)"


def locked(locks: Path) -> dict[str, str]:
    """What is in the default image: wheels and Debian packages, with versions."""
    wheels = read_wheels(locks / f"wheel-cu130-torch{T130}-py313.json").wheels
    debs = read(DebLock, locks / "base-trixie.json").versions()
    return {**debs, **{wheel.name: wheel.version for wheel in wheels}}


def test_versions(built: Built, engine: Engine) -> None:
    done = engine.run("torch-cu130:latest", "python", "-c", PRINT, **quiet())
    assert (done.code, done.output.strip()) == (0, f"{T130}+cu130 13.0")


def test_tags_point_at_what_was_verified(built: Built, engine: Engine) -> None:
    assert "torch-cu130:latest" in built.tags
    assert {engine.inspect(tag).id for tag in built.tags} == {built.digest}
    assert built.observed["arch 9.0"] == "native sm_90"
    assert built.checks["failed"] == 0
    assert built.checks["passed"] > 150
    assert not engine.tags(f"torch-images-candidate:{built.id}")


def test_without_a_command_it_says_what_it_is(
    built: Built, config: Config, engine: Engine, locks: Path
) -> None:
    versions = locked(locks)
    major, minor, patch, *_ = map(int, versions["nvidia-cudnn-cu13"].split("."))
    python = versions["python3.13-minimal"].partition("-")[0]
    done = engine.run(built.tags[0], **quiet())
    assert done.code == 0
    assert done.output.splitlines() == [
        f"PyTorch {versions['torch']}+cu130  CUDA 13.0  Triton {versions['triton']}"
        f"  cuDNN {major * 10000 + minor * 100 + patch}  Python {python}",
        "architectures: sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
        "GPUs: no GPU visible",
        *limits(choose(config))["7.5"],
    ]


@pytest.mark.parametrize(
    "options", [{}, {"user": "1000:1000"}, {"read_only": True}], ids=["root", "user", "read-only"]
)
def test_starts_and_passes_the_exit_code(
    built: Built, engine: Engine, options: dict[str, object]
) -> None:
    command = ("python", "-c", "import torch, sys; sys.exit(int(torch.arange(8).sum()) - 21)")
    assert engine.run(built.tags[0], *command, **quiet(**options)).code == 7


def records(engine: Engine, image: str) -> dict[str, str]:
    """What the RECORDs of an image's wheels say of each file."""
    command = f"cd {SITE} && cat *.dist-info/RECORD"
    done = engine.run(image, "sh", "-c", command, **quiet())
    assert done.code == 0, done.output[-1000:]
    return {line.partition(",")[0]: line for line in done.output.splitlines()}


def test_build_for_one_architecture(
    built: Built, narrow: Built, config: Config, engine: Engine
) -> None:
    """It has code for its own GPUs only, and torch says so."""
    assert narrow.observed["arch 9.0"] == "native sm_90"
    assert narrow.checks["failed"] == 0
    listed = "import torch; print(torch.cuda.get_arch_list())"
    assert engine.run(narrow.digest, "python", "-c", listed, **quiet()).output == "['sm_90']\n"
    library = f"{SITE}/torch/lib/libtorch_cuda.so"
    size, whole = (
        int(engine.run(image.digest, "stat", "--format=%s", library, **quiet()).output)
        for image in (narrow, built)
    )
    assert size < whole / 2
    # Verification held the files against their RECORDs, which differ where images.yaml says so.
    ours, plain = (records(engine, image.digest) for image in (narrow, built))
    removals = [removal for removal in config.removals if removal.narrowed]
    globs = [glob for r in removals for glob in (*r.files, *r.code, *r.symbols, *r.lists)]
    changed = {name for name in ours | plain if ours.get(name) != plain.get(name)}
    assert "torch/lib/libtorch_cuda.so" in changed
    assert {n for n in changed if not any(fnmatchcase(n, glob) for glob in globs)} == set()


def test_building_again_takes_what_there_is(built: Built) -> None:
    done = invoke("build", "--select", DEFAULT, "--json")
    assert done.returncode == 0, done.stderr
    [image] = json.loads(done.stdout)["images"]
    assert (image["digest"], image["tags"]) == (built.digest, list(built.tags))
    assert f"{built.id} is built already, from the same inputs" in done.stderr
    assert "building with" not in done.stderr  # BuildKit's first line


def test_ours_lists_untagged_images(engine: Engine, runner: Runner, tmp_path: Path) -> None:
    """`invoke gc --images` removes what newer builds have left without a name."""
    names = ("torch-images-test:old", "torch-images-test:new")

    def untagged() -> set[str]:
        return {image.id for image in built_here.ours(tmp_path, engine) if not image.tags}

    for name in names:
        recipe = f"FROM scratch\nLABEL name={name}\nCOPY <<x /x\nx"
        command = ["docker", "buildx", "build", "--provenance=false", "--tag", name, "-"]
        runner.run(command, stdin=recipe)
    old, new = (engine.inspect(name).id for name in names)
    built_here.note(tmp_path, engine, old)
    built_here.note(tmp_path, engine, new)
    try:
        engine.tag(new, *names[0].split(":"))
        assert {old, new} & untagged() == {old}
    finally:
        for reference in (old, *names):
            engine.untag(reference)
    assert not {old, new} & untagged()


def test_gpus_where_the_engine_has_none(built: Built) -> None:
    """Its own words and a hint, in one line; where it has some, the whole suite passes on them."""
    done = invoke("verify", built.digest, "--gpus", "all")
    if done.returncode == 0:
        return
    assert done.returncode == 4, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: the engine cannot give the container a GPU: ")
    assert "; install nvidia-container-toolkit; " in last


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_verify_interrupted_leaves_no_container(built: Built, number: int) -> None:
    """Both suites run by then. A container of one that was killed sleeps for ever."""
    # To the nanosecond: with whole seconds, the case before this one answers in its place.
    listen = ["docker", "events", f"--since={time.time():.9f}", "--format={{json .}}"]
    listen += ["--filter=type=container", "--filter=label=torch-images=verify"]
    command = [sys.executable, "-m", "invoke", "verify", built.digest]
    containers: set[str] = set()
    with (
        subprocess.Popen(listen, stdout=PIPE, text=True) as events,
        subprocess.Popen(command, cwd=ROOT, stderr=PIPE, text=True, start_new_session=True) as verb,
    ):
        assert events.stdout
        assert verb.stderr
        verb.stderr.readline()  # which image it is: the verb heeds signals by then
        for event in map(json.loads, events.stdout):
            if event["Actor"]["Attributes"]["image"] == built.digest:
                containers.add(event["Actor"]["ID"])
                if "pytest" in event["Action"]:
                    break
        os.killpg(verb.pid, number)
        _, stderr = verb.communicate(timeout=20)
        events.kill()
    assert verb.returncode == 128 + number
    assert stderr.splitlines() == ["interrupted"]
    listed = ["docker", "ps", "--all", "--quiet", "--no-trunc"]
    left = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    assert containers
    assert not containers & {*left}


@pytest.mark.parametrize("name", [DEFAULT, "torch-cu130:latest"])
def test_verify_finds_an_image_by_any_name(
    built: Built, config: Config, workspace: Workspace, engine: Engine, name: str
) -> None:
    reference, planned = identify(config, name, workspace, engine)
    assert planned.spec.id == built.id
    assert engine.inspect(reference).id == built.digest


def test_identify_names_the_latest_build(
    built: Built, config: Config, workspace: Workspace, engine: Engine, runner: Runner
) -> None:
    """Also beside an older one of the same identifier, whose tag comes first in the alphabet."""
    name = "torch-cu130:0-older-build"
    recipe = f"FROM scratch\nLABEL io.github.torch-images.id={built.id}\nCOPY <<x /x\nx"
    command = ["docker", "buildx", "build", "--provenance=false", "--tag", name, "-"]
    runner.run(command, stdin=recipe)
    try:
        reference, _ = identify(config, built.id, workspace, engine)
        assert engine.inspect(reference).id == built.digest
    finally:
        engine.untag(name)
