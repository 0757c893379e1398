"""Torch and Triton compiled from trees: stand-ins for both, everything around them real."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uv

from tests.integration.standins import replace, served
from tests.integration.support import SITE, Built, docker, facts, invoke, quiet
from tests.integration.trees import (
    FORK,
    LLVM,
    Repositories,
    archives,
    compiling_project,
    make_repositories,
    mirror,
)
from tests.releases import F130
from torch_images.arch import targets_in_listing
from torch_images.build.bake import FILE, environment
from torch_images.build.build import write_bake
from torch_images.build.job import BuildOptions, Job
from torch_images.build.plan import plan_image, plan_images
from torch_images.build.prepare import prepare_inputs
from torch_images.config.choose import choose
from torch_images.config.load import load_config
from torch_images.host.buildx import cache_records, forget
from torch_images.host.engine import Engine
from torch_images.host.network import detect
from torch_images.host.runner import Completed, Runner
from torch_images.host.workspace import Workspace, default_cache
from torch_images.locks.facts import with_facts
from torch_images.locks.files import dumps
from torch_images.locks.wheels import read_wheels
from torch_images.verify import verify
from torch_images.verify.identify import identify
from torch_images.verify.suites import Check, Subject, outside

WHEELS = (
    *("wheels", "--cuda", "13.0", "--skip-disk-check"),
    *("--source", "fork"),
)
BACKEND = "triton/backends/nvidia"


@dataclass(frozen=True)
class Compiling:
    """A project that compiles stand-ins, and what its builds need."""

    folder: Path
    env: dict[str, str]
    repositories: Repositories
    files: dict[str, bytes]
    tools: Path

    def invoke(self, *words: str) -> subprocess.CompletedProcess[str]:
        return invoke(*words, cwd=self.folder, env=self.env)

    def wheels(self, *words: str, output: Path) -> str:
        """Compile into a folder; what was said on the way."""
        done = self.invoke(*WHEELS, *words, "--output", str(output))
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stderr

    def commit(self, name: str = FORK) -> None:
        """Commit what was changed in a checkout, the fork's or Triton's, and build from that."""
        text = (self.folder / "images.yaml").read_text()
        match = re.search(rf"{name}\n      commit: (\w+)", text)
        assert match
        commit = self.repositories.commit(name)
        replace(self.folder, "images.yaml", match[1], commit)
        lock = self.folder / "locks" / "source-fork.json"
        lock.write_text(lock.read_text().replace(match[1], commit))

    def code(self, wheel: Path, kind: str, scratch: Path) -> dict[str, int]:
        """How often each target occurs in the machine code, or PTX, of libtorch_cuda.so."""
        library = scratch / "libtorch_cuda.so"
        with zipfile.ZipFile(wheel) as zipped:
            library.write_bytes(zipped.read("torch/lib/libtorch_cuda.so"))
        command = [str(self.tools / "cuobjdump"), f"--list-{kind}", str(library)]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return dict(targets_in_listing(listed))


@pytest.fixture(scope="module")
def compiling(
    built: Built, locks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Compiling]:
    """The project, a mirror of its sources, and an index with stand-ins."""
    scratch = tmp_path_factory.mktemp("compiling")
    tools = scratch / "tools"
    tools.mkdir()
    names = ("cuobjdump", "nvdisasm")
    name = docker("create", built.digest).stdout.strip()  # is not started
    for tool in names:
        docker("cp", f"{name}:{SITE}/{BACKEND}/bin/{tool}", str(tools / tool))
    docker("rm", name)
    repositories = make_repositories(scratch / "repositories")
    folder = scratch / "project"
    data = {tool: (tools / tool).read_bytes() for tool in names}
    files = archives()
    pages = compiling_project(
        folder, locks, scratch / "wheels", repositories, tools=data, files=files
    )
    with served(pages) as index, mirror(repositories, files) as url:
        env = {
            "UV_DEFAULT_INDEX": index,
            "TORCH_IMAGES_SOURCE_MIRROR": url,
            "TORCH_IMAGES_LOCKS": str(folder / "locks"),
        }
        yield Compiling(folder, env, repositories, files, tools)


def hits(output: str, wheel: str) -> dict[str, tuple[int, int]]:
    """Of each kind of file: how many were in the compile cache, of how many."""
    lines = re.findall(rf"{wheel}: compile cache hits: (.*)", output)
    counts = re.findall(r"([^,]+?) (\d+) of (\d+)", lines[-1])
    return {kind.strip(): (int(hit), int(all_)) for kind, hit, all_ in counts}


def tables(compiling: Compiling, size: int, start: int) -> None:
    """Give the fork four files whose compilation takes memory, 0.16 KB for each element."""
    folder = compiling.repositories.work(FORK) / "aten" / "tables"
    folder.mkdir(exist_ok=True)
    for number in range(4):
        values = ",".join(str((start + number + i) % 97) for i in range(size))
        text = f"extern const int table_{number}[];\nconst int table_{number}[] = {{{values}}};\n"
        (folder / f"table_{number}.cpp").write_text(text)
    compiling.commit()


@pytest.mark.slow
def test_wheels_match_the_request(compiling: Compiling, tmp_path: Path) -> None:
    output = compiling.wheels("--arch", "8.0,9.0,12.0", output=tmp_path / "dist")
    torch, triton = sorted((tmp_path / "dist").glob("*.whl"))
    commit = (compiling.repositories.work(FORK) / ".git/refs/heads/main").read_text().strip()
    assert torch.name == f"torch-2.12.0a0+git{commit[:7]}.cu130-cp313-cp313-linux_x86_64.whl"
    assert re.fullmatch(r"triton-3\.7\.1\+git\w{7}-cp313-cp313-linux_x86_64\.whl", triton.name)
    assert compiling.code(torch, "elf", tmp_path).keys() == {"sm_80", "sm_90", "sm_120"}
    assert not compiling.code(torch, "ptx", tmp_path)
    with zipfile.ZipFile(torch) as zipped:
        assert f"git_version = '{commit}'" in zipped.read("torch/version.py").decode()
        assert {member.date_time for member in zipped.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    with zipfile.ZipFile(triton) as zipped:
        names = set(zipped.namelist())
        header = zipped.read(f"{BACKEND}/include/cuda.h").decode()
        library = zipped.read("triton/_C/libtriton.so")
    assert {f"{BACKEND}/bin/{n}" for n in ("ptxas", "ptxas-blackwell")} <= names
    assert "#define CUDA_VERSION 13000" in header  # the toolkit's, not the published Triton's
    assert b".debug_info" not in library
    assert "triton: 0 files left out, 1 libraries stripped" in output
    assert re.search(
        r"warning: triton: cuobjdump is of CUDA \d+\.\d+, the wheel is for 13\.0", output
    )


def test_build_with_compiled_wheels(
    compiling: Compiling, built: Built, engine: Engine, tmp_path: Path
) -> None:
    words = ("build", "--arch", "12.0", "--source", "fork", "--unverified")
    done = compiling.invoke(*words, "--skip-disk-check", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    [image] = json.loads(done.stdout)["images"]
    assert image["unlocked"] is False
    [tag] = image["tags"]
    code = (
        "import ctypes, pathlib, torch, triton; print(torch.answer(), triton.__version__);"
        "ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / 'lib/libtorch_cuda.so'))"
    )
    try:
        # A stand-in for torch has no precision to set.
        stock = facts(environment={"TORCH_IMAGE_QUIET": "1", "TORCH_IMAGE_PROFILE": "off"})
        ran = engine.run(tag, "python", "-c", code, **stock)
        assert (ran.code, ran.output) == (0, "50 3.7.1\n")
        labels = engine.inspect(tag).labels
        assert labels["io.github.torch-images.torch.commit"] == (
            (compiling.repositories.work(FORK) / ".git/refs/heads/main").read_text().strip()
        )
        ptxas = f"{SITE}/triton/backends/nvidia/bin/ptxas-blackwell"
        assert "release 13.0" in engine.run(tag, ptxas, "--version", **quiet()).output
        assert engine.run(tag, "sh", "-c", "command -v nvcc ccache cmake", **quiet()).code == 127
        ours, plain = (engine.inspect(x).layers for x in (tag, built.digest))
        assert ours[0] == plain[0]
        assert len(set(ours) & set(plain)) > 1  # the virtual environment, on whatever it lies
        failed = {check.name for check in seen(compiling, tag, engine) if check.outcome == "failed"}
        # The rest of the suite is what a stand-in cannot do: be torch, or have pip.
        assert {name.rpartition("/")[2] for name in failed} == {
            "test_bill_of_materials_names_known_licences",
            "test_python_is_the_environments",
        }
    finally:
        engine.untag(tag)
    # BuildKit, which loses all steps with one of them, need not compile again.
    assert "torch: compile cache hits: " in done.stderr
    [compiled, *_] = [r.id for r in cache_records(Runner()) if "build-wheel torch" in r.step]
    forget([compiled], Runner())
    again = compiling.invoke(*words, "--skip-disk-check", "--json")
    assert json.loads(again.stdout)["images"][0]["digest"] == image["digest"]
    engine.untag(tag)
    assert "[environment 1/" in again.stderr
    assert "compile cache hits" not in again.stderr
    assert "compile cache hits" not in compiling.wheels("--arch", "12.0", output=tmp_path / "dist")
    assert len(list((tmp_path / "dist").glob("*.whl"))) == 2


def refused(compiling: Compiling, *words: str, code: int = 1) -> str:
    """The one line that a build ends with that must fail, leaving nothing behind."""
    output = compiling.folder / "refused"
    done = compiling.invoke(*WHEELS, "--arch", "12.0", *words, "--output", str(output))
    assert done.returncode == code, done.stderr[-3000:]
    assert not output.exists()
    assert "Traceback" not in done.stderr.splitlines()[-1]
    return done.stderr.strip().splitlines()[-1]


def seen(compiling: Compiling, tag: str, engine: Engine) -> tuple[Check, ...]:
    """The checks of an image from outside, against its claim."""
    folder = compiling.folder
    network = detect(os.environ)
    workspace = Workspace(
        root=folder, cache=default_cache(), network=network, locks=folder / "locks"
    )
    config = with_facts(load_config(folder / "images.yaml"), folder / "locks")
    reference, planned = identify(config, tag, workspace, engine)
    claimed = verify.claim(config, planned)
    info, run = engine.inspect(reference), Runner()
    job = Job(config=config, workspace=workspace, engine=engine, run=run)
    subject = Subject(job=job, info=info, claim=claimed)
    return outside(subject, ()).checks


@pytest.mark.slow
def test_lock_has_the_downloads_of_triton(compiling: Compiling, tmp_path: Path) -> None:
    done = compiling.invoke("lock", "--select", "source-fork")
    assert (done.returncode, done.stdout) == (0, "source-fork: unchanged\n")
    compiling.wheels("--arch", "12.0", output=tmp_path / "dist")
    original = compiling.files[LLVM]
    compiling.files[LLVM] = original + b"x"
    try:
        done = compiling.invoke("lock", "--check", "--select", "source-fork")
        assert done.returncode == 3
        assert "llvm f6ded0be-ubuntu-x64 altered (source-fork)" in done.stderr
    finally:
        compiling.files[LLVM] = original


@pytest.mark.slow
def test_a_slice_stops_with_7_and_the_next_call_goes_on(
    compiling: Compiling, tmp_path: Path
) -> None:
    """One compiler at a time needs more than a slice for the tables alone."""
    tables(compiling, 4_000_000, os.getpid() + 2)
    output = tmp_path / "dist"
    words = (*WHEELS, "--arch", "12.0", "--jobs", "1", "--output", str(output))
    stopped = (
        r"error: (torch|triton)(: \d+ of \d+ units compiled, \d+ (s|min) in this build"
        r"(, the largest compiler took (\d\.\d GB|\d+ MB))?| was not begun); run the same command again to continue"
    )
    ended = []
    for _ in range(20):
        done = compiling.invoke(*words, "--slice", "20s")
        ended.append(done.returncode)
        if not done.returncode:
            break
        assert done.returncode == 7, done.stderr[-3000:]
        assert re.fullmatch(stopped, done.stderr.strip().splitlines()[-1])
        assert not output.exists()
    assert ended[0] == 7
    assert ended[-1] == 0
    assert hits(done.stderr, "torch")["C/C++"][0] > 0
    assert len(list(output.glob("*.whl"))) == 2


def step(
    compiling: Compiling,
    engine: Engine,
    folder: Path,
    *options: str,
) -> Completed:
    """Build what a project's bake would, with options that bake does not have."""
    network = dataclasses.replace(
        detect(os.environ),
        index=compiling.env["UV_DEFAULT_INDEX"],
        source_mirror=compiling.env["TORCH_IMAGES_SOURCE_MIRROR"],
    )
    locks = folder / "locks"
    workspace = Workspace(root=folder, cache=default_cache(), network=network, locks=locks)
    config = with_facts(load_config(folder / "images.yaml"), locks)
    how = BuildOptions(jobs=2)
    [planned] = plan_images(
        config, [choose(config, arch="12.0", source="fork")], workspace.root, workspace.locks
    )
    run = Runner()
    job = Job(config=config, workspace=workspace, engine=engine, run=run, options=how)
    vars(job).update(remote=True)  # layouts as contexts, for a plain build
    parts = prepare_inputs(job, [planned])
    plans = [plan_image(config, planned, workspace.root)]
    bake = workspace.output / "made"
    write_bake(job, plans, parts, folder=bake)
    target = json.loads((bake / FILE).read_text())["target"][planned.target]
    command = ["docker", "buildx", "build", "--progress=plain", "--network=host", *options]
    command += [f"--build-context={name}={path}" for name, path in target["contexts"].items()]
    command += [f"--build-arg={name}={value}" for name, value in target["args"].items()]
    command += [f"--secret={secret}" for secret in target["secret"]]
    return run.stream([*command, target["context"]], env=environment(network, job.options))


@pytest.mark.slow
def test_equal_wheels_from_two_directories(
    compiling: Compiling, engine: Engine, tmp_path: Path
) -> None:
    """Compiled twice, with nothing in the compile cache: other folders, modes and dates.

    The base and the layers of wheels are the same ones: other tests make those from nothing.
    """
    shutil.rmtree(compiling.repositories.work(FORK) / "aten" / "tables", ignore_errors=True)
    compiling.commit()
    wheels = []
    for number, mask in ((1, 0o022), (2, 0o077)):
        old_mask = os.umask(mask)
        try:
            folder = tmp_path / f"project {number}"
            shutil.copytree(compiling.folder, folder)
            output = tmp_path / f"dist-{number}"
            done = step(
                compiling,
                engine,
                folder,
                *("--target=compiled", "--no-cache-filter=compile-torch,compile-triton"),
                f"--build-arg=BUILDKIT_CACHE_MOUNT_NS={folder}",
                f"--output=type=local,dest={output}",
            )
        finally:
            os.umask(old_mask)
        assert not done.code, done.output
        assert hits(done.output, "torch")["CUDA"][0] == 0
        wheels.append({path.name: path.read_bytes() for path in sorted(output.iterdir())})
    assert wheels[0].keys() == wheels[1].keys()
    assert len(wheels[0]) == 2
    assert wheels[0] == wheels[1]


@pytest.mark.slow
def test_wheels_by_a_compiler_from_archives(compiling: Compiling, tmp_path: Path) -> None:
    """As for CUDA 12.8, with the archives that hold its nvcc made of the wheels of 13.0's."""
    lock = compiling.folder / "locks" / f"build-fork-cu130-torch{F130}-py313.json"
    before = lock.read_text()
    parts = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl")
    wheels = [w for w in read_wheels(lock).wheels if w.name in parts]
    words = [f"{wheel.name}=={wheel.version}" for wheel in wheels]
    site = tmp_path / "site"
    install = [uv.find_uv_bin(), "pip", "install", "--quiet", "--no-config", "--no-deps"]
    env = {k: v for k, v in os.environ.items() if k not in ("PIP_FIND_LINKS", "UV_FIND_LINKS")}
    network = detect(os.environ).for_uv()
    env |= {k: v for k, v in network.items() if v is not None}
    subprocess.run([*install, "--target", site, *words], env=env, check=True)
    root = "/developer.download.nvidia.com/compute/cuda/redist"
    data, path = io.BytesIO(), "cuda_nvcc/linux-x86_64/cuda_nvcc-linux-x86_64-13.0.88-archive"
    with tarfile.open(fileobj=data, mode="w:xz", preset=0) as tar:
        tar.add(site / "nvidia" / "cu13", arcname=path.rpartition("/")[2])
    compiling.files[f"{root}/{path}.tar.xz"] = data.getvalue()
    file = {
        "relative_path": f"{path}.tar.xz",
        "sha256": hashlib.sha256(data.getvalue()).hexdigest(),
        "size": str(len(data.getvalue())),
    }
    listed = {"cuda_nvcc": {"version": "13.0.88", "linux-x86_64": file}}
    compiling.files[f"{root}/redistrib_13.0.2.json"] = json.dumps(listed).encode()
    toolkit = "    toolkit: [cccl, crt, nvcc, nvml, nvvm, profiler]\n"  # the first is 13.0's
    archived = "    release: 13.0.2\n    archives: [cuda_nvcc]\n"
    replace(compiling.folder, "images.yaml", toolkit, archived)
    try:
        without = dataclasses.replace(
            read_wheels(lock),
            request=tuple(w for w in read_wheels(lock).request if "cuda-toolkit" not in w),
            wheels=tuple(w for w in read_wheels(lock).wheels if w.name not in parts),
        )
        lock.write_text(dumps(without))
        assert "locks/toolkit-cu130.json does not exist" in refused(compiling, code=3)
        done = compiling.invoke("lock", "--select", "toolkit-cu130")
        assert done.returncode == 0, done.stderr
        output = compiling.wheels("--arch", "12.0", output=tmp_path / "dist")
        assert "torch: compiled in" in output
        [torch] = (tmp_path / "dist").glob("torch-*")
        assert compiling.code(torch, "elf", tmp_path).keys() == {"sm_120"}
        compiling.files[f"{root}/{path}.tar.xz"] += b"x"
        done = compiling.invoke("lock", "--check", "--select", "toolkit-cu130")
        assert done.returncode == 0, done.stderr  # the list of the release says the same
    finally:
        replace(compiling.folder, "images.yaml", archived, toolkit)
        lock.write_text(before)
        (compiling.folder / "locks" / "toolkit-cu130.json").unlink(missing_ok=True)
