"""A standalone folder: whole in itself, of the same steps, and with the same files of wheels."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import installer
import packaging
import pytest
import zstandard

from tests.libraries import library
from tests.servers import web_server
from tests.unit.fakes import FakeRunner, workspace_of
from tests.unit.test_layers import FILES
from tests.unit.test_render import instructions
from tests.wheels import StandIn, index, make_wheel
from torch_images.build import standalone
from torch_images.build.bake import Parts
from torch_images.build.job import Job
from torch_images.build.plan import ImagePlan, LockedImage, lock_image, plan_image
from torch_images.build.render import Context
from torch_images.build.standalone import render_standalone, write_standalone
from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec
from torch_images.config.types import Config, Removal
from torch_images.errors import UsageError
from torch_images.fetch.bootstrap import ReadyBase
from torch_images.layers.make import write_layer
from torch_images.layers.plan import plan_layers
from torch_images.oci.layout import write_layout

NOTE = '{"driver":[535],"device":[2]}'  # of a compat library
IMAGES: tuple[dict[str, str], ...] = (
    {},
    {"variant": "devel"},
    {"variant": "pod"},
    {"base": "bookworm"},
    {"cuda": "12.8", "arch": "9.0"},
)
TOOLS = ("tools", "sbom", "wheel-tools")


def plan_of(config: Config, root: Path, spec: ImageSpec) -> ImagePlan:
    return plan_image(config, lock_image(config, spec, root / "locks"), root)


def parts_of(plan: ImagePlan) -> Parts:
    """All that a build of an image would be given, at places that do not exist."""
    nowhere = Path("/nowhere")
    lock = plan.lock
    names = {"compat": True, "added": lock.extra_debs, "toolkit": lock.toolkit}
    return Parts(
        base=ReadyBase(layout=nowhere, digest="sha256:0"),
        contexts={name: "/nowhere" for name, needed in names.items() if needed},
        compat_note=NOTE,
    )


def rendered(config: Config, root: Path, spec: ImageSpec) -> Context:
    plan = plan_of(config, root, spec)
    parts = parts_of(plan)
    return render_standalone(config, plan, parts, root, [*parts.contexts, *TOOLS])


def text(context: Context, path: str) -> str:
    return next(file.data.decode() for file in context.files if file.path == path)


@pytest.mark.parametrize("axes", IMAGES)
def test_standalone_folder_has_every_file_that_its_dockerfile_names(
    config: Config, root: Path, axes: dict[str, str]
) -> None:
    """No context, no argument and no other image has to be given to the build."""
    context = rendered(config, root, choose(config, **axes))
    steps = instructions(context.dockerfile)
    stages = [step.split()[-1] for step in steps if step.startswith("FROM ")]
    froms = {step.split()[1] for step in steps if step.startswith("FROM ")}
    mounted = set(re.findall(r"\bfrom=([\w-]+)", "\n".join(steps)))
    assert froms | mounted <= {*stages, "scratch"}
    assert mounted == {s.split()[-1] for s in steps if s.startswith("FROM scratch")} - {"base"}
    folders = {str(parent) for file in context.files for parent in Path(file.path).parents}
    files = {file.path for file in context.files}
    sources = re.findall(r"type=bind,source=([^,]+)", "\n".join(steps))
    assert {*sources} <= folders | files
    copied = [step.split()[1] for step in steps if step.startswith("COPY ")]
    assert copied == [f"supplies/{s}/" for s in stages[: len(copied)]]
    assert [step.split()[1] for step in steps if step.startswith("ADD ")] == ["base.tar.gz"]
    first = steps.index(next(step for step in steps if step.startswith("FROM ")))
    given = {step.split()[1].partition("=")[0] for step in steps[:first]}
    arguments = {step.split()[1] for step in steps[first:] if step.startswith("ARG ")}
    assert arguments <= given


# --- the folder on disk ---


class Ready:
    """What stands for the preparation of inputs: a base of one file, and a folder of packages."""

    folder: Path

    def __init__(self, *_: object) -> None: ...

    def first(self, images: list[LockedImage]) -> None: ...

    def parts(self, image: LockedImage) -> Parts:
        layer, layout = self.folder / "layer.tar", self.folder / "layout"
        with tarfile.open(layer, "w") as tar:
            member = tarfile.TarInfo("etc/passwd")
            member.size, member.mode, member.uid = 4, 0o640, 7
            tar.addfile(member, io.BytesIO(b"root"))
        digest = write_layout(layout, layer, history="x")
        base = ReadyBase(layout=layout, digest=digest)
        return Parts(base=base)


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ready.folder = tmp_path / "made"
    Ready.folder.mkdir()

    def tools(name: str, *_: object) -> Path:
        folder = tmp_path / name
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "tool").write_text(name)
        (folder / "bin" / "tool").chmod(0o755)
        return folder

    monkeypatch.setattr(standalone, "Preparer", Ready)
    monkeypatch.setattr(standalone, "install_tools", tools)


def write(config: Config, root: Path, folder: Path) -> ImagePlan:
    image = lock_image(config, choose(config, arch="12.0"), root / "locks")
    workspace = workspace_of(root, folder)
    no_engine = cast("Any", None)
    job = Job(config=config, workspace=workspace, engine=no_engine, run=FakeRunner())
    return write_standalone(job, image, folder)


@pytest.mark.usefixtures("prepared")
def test_write_standalone_writes_supplies_and_base(
    config: Config, root: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    write(config, root, folder)
    assert {path.name for path in (folder / "supplies").iterdir()} == {*TOOLS}
    tool = folder / "supplies" / "wheel-tools" / "bin" / "tool"
    assert tool.read_text() == "tools-standalone"
    assert stat.S_IMODE(tool.stat().st_mode) == 0o755
    with tarfile.open(folder / "base.tar.gz", "r:gz") as base:
        [member] = base.getmembers()
        assert (member.name, member.mode, member.uid) == ("etc/passwd", 0o640, 7)
    before = gzip.decompress((folder / "base.tar.gz").read_bytes())
    shutil.rmtree(Ready.folder / "layout")
    for name in ("build", "sbom", "standalone"):
        shutil.rmtree(tmp_path / f"tools-{name}")
    write(config, root, folder)  # its own folder may be replaced
    assert gzip.decompress((folder / "base.tar.gz").read_bytes()) == before


@pytest.mark.usefixtures("prepared")
def test_write_standalone_refuses_a_folder_with_other_files(
    config: Config, root: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "notes").write_text("mine")
    with pytest.raises(UsageError, match="has notes, which this program did not write"):
        write(config, root, folder)
    assert [path.name for path in folder.iterdir()] == ["notes"]
    assert not [*Ready.folder.iterdir()]  # said before anything is fetched


# --- the program that installs a layer ---

_DRIVER = """
import importlib.machinery, importlib.util, pathlib, sys
sys.dont_write_bytecode = True
sys.path[:0] = sys.argv[1:3]
loader = importlib.machinery.SourceFileLoader("install_layer", sys.argv[1] + "/install-layer")
module = importlib.util.module_from_spec(importlib.util.spec_from_loader("install_layer", loader))
loader.exec_module(module)
assert "zlib_ng" not in sys.modules and "yaml" not in sys.modules
module.ROOT, module.SCRATCH = pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4])
module.unpack(pathlib.Path(sys.argv[5]))
"""


@pytest.fixture
def program(config: Config, root: Path, tmp_path: Path) -> Path:
    """The folder with the program, as a build mounts it, and `tools` beside it."""
    context = rendered(config, root, choose(config, arch="12.0"))
    for file in context.files:
        if file.path.startswith("standalone/"):
            path = tmp_path / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
    for module in (installer, packaging):
        shutil.copytree(Path(str(module.__file__)).parent, tmp_path / "tools" / module.__name__)
    return tmp_path / "standalone"


def unpack(program: Path, wheels: Path, facts: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run it with the standard library, installer and packaging alone, into the folder `tree`."""
    tree = program.parent / "tree"
    tree.mkdir(exist_ok=True)
    layer = program.parent / "layer.json"
    layer.write_text(json.dumps(facts))
    words = [program, program.parent / "tools", tree, wheels, layer]
    command = [sys.executable, "-I", "-S", "-c", _DRIVER, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def tree_of(folder: Path) -> Iterator[tuple[str, int, float, bytes]]:
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        yield str(path.relative_to(folder)), stat.S_IMODE(info.st_mode), info.st_mtime, data


def test_install_layer_unpacks_the_files_of_our_layer(program: Path, tmp_path: Path) -> None:
    """Files, modes, times and RECORDs, with removals of files, of machine code, and from a list."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    code = library([[(90, False, False, 9000), (120, False, False, 9000)]])
    code = code.replace(b"r" * 15, b"\0sm_90 sm_120\0r", 1)
    wheel = make_wheel(wheels, "tool", "1.0", {**FILES, "tool/lib/libx.so": code})
    removals = (
        Removal(wheels=("tool",), reason="", files=("tool/tests/*",)),
        Removal(wheels=("tool",), reason="", code=("tool/lib/*.so",), lists=("tool/lib/*.so",)),
    )
    [plan] = plan_layers("tool", [wheel.locked], "3.11", removals, [90])
    done = unpack(program, wheels, json.loads(json.dumps(standalone._recipe(plan))))
    assert done.returncode == 0, done.stderr
    blob = io.BytesIO()
    path = wheels / wheel.locked.filename
    write_layer(plan, [path], blob)
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(blob.getvalue())
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        expected = sorted(
            (
                m.name,
                m.mode,
                float(m.mtime),
                (tar.extractfile(m) or io.BytesIO()).read() if m.isreg() else b"",
            )
            for m in tar
        )
    entries = [*tree_of(tmp_path / "tree")]
    assert sorted(entries) == expected
    names = {name for name, *_ in entries}
    site = "opt/venv/lib/python3.11/site-packages"
    assert f"{site}/tool/__init__.py" in names
    assert f"{site}/tool/tests/test_it.py" not in names
    [less] = [data for name, _, _, data in entries if name.endswith("libx.so")]
    assert len(less) < len(code)
    assert b"\0sm_90       \0" in less


def fetch(program: Path, wheel: StandIn, url: str, sha256: str) -> subprocess.CompletedProcess[str]:
    """Run its download with an index on loopback, which a secret names."""
    folder = program.parent
    (folder / "secrets").mkdir()
    (folder / "secrets" / "index").write_text(f"{url}/simple\n")
    (folder / "secrets" / "ca").write_text("")  # an empty one is none
    line = f"{wheel.locked.name}=={wheel.locked.version} --hash=sha256:{sha256}\n"
    (folder / "requirements.txt").write_text(line)
    driver = _DRIVER.replace("module.unpack", "module.SECRETS = module.ROOT; module.fetch")
    words = [program, folder / "tools", folder / "secrets", folder / "got"]
    driver = re.sub("assert .*", "", driver)  # pip is in the environment of the tests
    command = [sys.executable, "-c", driver, *map(str, words), str(folder / "requirements.txt")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("right", [True, False])
def test_install_layer_fetches_by_hash(program: Path, tmp_path: Path, *, right: bool) -> None:
    wheel = make_wheel(tmp_path, "tool", "1.0")
    with web_server(index([wheel])) as (url, _):
        sha256 = wheel.locked.sha256 if right else hashlib.sha256(b"").hexdigest()
        done = fetch(program, wheel, url, sha256)
    got = [path.name for path in (tmp_path / "got").glob("*.whl")]
    assert got == ([wheel.locked.filename] if right else [])
    assert (done.returncode == 0) == right, done.stderr
    assert right or "DO NOT MATCH THE HASHES" in done.stderr
