"""Extensions of torch: extras that a build compiles from their source distributions."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import gate
import pytest

from tests.servers import web_server
from torch_images.build.build import alone
from torch_images.build.compile_recipe import recipes
from torch_images.build.plan import LockedImage
from torch_images.build.render import Context, render
from torch_images.config.choose import choose, choose_own
from torch_images.config.extras import Extra
from torch_images.config.image import ImageSpec, with_extras
from torch_images.config.lock_requests import SourceRequest, image_inputs, source_input
from torch_images.config.own import Own
from torch_images.config.types import Config, Source
from torch_images.errors import LockError
from torch_images.fetch.apt import Resolver
from torch_images.fetch.own import compiled_extras
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.toolchain import resolve_sources, sdist_folder
from torch_images.fetch.update import ALTERED, UNCHANGED, VANISHED, check
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.locks.files import dumps, parse
from torch_images.locks.image_lock import ImageLock, image_lock, with_locked_extras
from torch_images.locks.sources import LockedSdist, SourceLock

DATA = b"an sdist"
SDIST = LockedSdist(
    name="fast-one",
    version="1.0",
    filename="fast_one-1.0.tar.gz",
    size=len(DATA),
    sha256=hashlib.sha256(DATA).hexdigest(),
)
EXTRA = Extra(
    name="fast",
    description="An extension.",
    source="fast-one==1.0",
    options=(("FORCE", "TRUE"),),
    wheels=(("13.0", ("einops",)),),
    arches=("8.0", "9.0", "12.0"),
)


@pytest.fixture
def image(config: Config, root: Path) -> tuple[Config, ImageSpec, ImageLock]:
    """An image for two architectures, one of which runs the code for another."""
    config = replace(config, extras=(*config.extras, EXTRA))
    plain = choose(config, cuda="13.0", arch="8.6,9.0")
    fork = choose(config, cuda="13.0", arch="9.0", source="fork")
    tools = image_lock(config, fork, root / "locks")
    sources = SourceLock(
        name="source-runtime", date=dt.date(2026, 1, 1), request=(EXTRA.source,), sdists=(SDIST,)
    )
    lock = replace(
        image_lock(config, plain, root / "locks"),
        sources=sources,
        tools=tools.tools,
        tool_debs=tools.tool_debs,
    )
    return config, with_locked_extras(config, plain, lock), lock


def test_with_locked_extras_takes_each_extra_once(
    image: tuple[Config, ImageSpec, ImageLock],
) -> None:
    config, spec, lock = image
    assert spec.variant.sources == (EXTRA,)
    assert with_locked_extras(config, spec, lock) == spec
    assert spec.compiles
    assert not spec.source.compiled
    assert lock.compiled == {"fast-one": "1.0"}


@pytest.mark.parametrize(
    ("arches", "targets"),
    [
        (("9.0",), ("9.0",)),
        (("8.6", "8.9", "9.0"), ("8.0", "9.0")),
        (("12.0", "12.1"), ("12.0",)),
    ],
)
def test_targets_are_the_best_code_that_gpus_run(
    arches: tuple[str, ...], targets: tuple[str, ...]
) -> None:
    assert EXTRA.targets(arches) == targets
    assert replace(EXTRA, arches=()).targets(arches) == arches


def test_image_inputs_include_what_compiles_an_extension(config: Config) -> None:
    plain = choose(config, cuda="13.0", arch="9.0")
    assert source_input(plain) is None
    names = {item.name for item in image_inputs(config, with_extras(plain, (EXTRA,)))}
    more = names - {item.name for item in image_inputs(config, plain)}
    assert {name.split("-")[0] for name in more} == {"build", "source", "wheel"}
    assert "source-runtime" in more


def test_recipes_are_for_the_image_alone(image: tuple[Config, ImageSpec, ImageLock]) -> None:
    config, spec, lock = image
    [(name, recipe)] = recipes(config, spec, lock).items()
    assert (name, recipe["version"], recipe["arches"]) == ("fast-one", "1.0", "8.0;9.0")
    environment = recipe["environment"]
    assert environment["FORCE"] == "TRUE"
    assert environment["GENCODE"] == (
        "-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90"
    )


def stages(context: Context) -> list[tuple[str, str]]:
    lines = (line.split() for line in context.dockerfile.splitlines() if line.startswith("FROM"))
    return [(words[-3], words[-1]) for words in lines]


def test_render_compiles_an_extension_on_the_environment(
    image: tuple[Config, ImageSpec, ImageLock], root: Path
) -> None:
    config, spec, lock = image
    context = render(config, spec, lock, root)
    assert stages(context) == [
        ("parent", "environment"),
        ("environment", "toolchain"),
        ("toolchain", "compile-fast-one"),
        ("scratch", "compiled"),
        ("environment", "variant"),
        ("variant", "runtime"),
    ]
    compiling = context.dockerfile.partition("AS compile-fast-one")[2].partition("FROM")[0]
    assert "--network=none" in compiling
    assert "from=sdists,source=/fast_one-1.0.tar.gz" in compiling
    installed = context.dockerfile.partition("AS variant")[2]
    assert "from=compile-fast-one,source=/wheels/fast-one" in installed


def test_alone_leaves_one_extension(image: tuple[Config, ImageSpec, ImageLock]) -> None:
    config, spec, lock = image
    assert lock.sources
    other = replace(SDIST, name="slow-one", filename="slow_one-1.0.tar.gz")
    both = replace(lock, sources=replace(lock.sources, sdists=(SDIST, other)))
    left = alone(LockedImage(spec=spec, lock=both), "fast-one")
    assert left.lock.compiled == {"fast-one": "1.0"}
    assert alone(LockedImage(spec=spec, lock=both), "slow-one").spec.variant.sources == ()
    assert recipes(config, left.spec, left.lock).keys() == {"fast-one"}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Network]:
    """A stand-in of an index, whose project also has a wheel and another version."""
    names = ("fast_one-1.0-cp313-cp313-linux_x86_64.whl", SDIST.filename, "fast_one-0.9.tar.gz")
    links = "".join(f'<a href="{n}#sha256={SDIST.sha256}">{n}</a>' for n in names)
    page = "/simple/fast-one/"
    with web_server({page: links.encode(), f"{page}{SDIST.filename}": DATA}) as (url, _):
        yield Network(index=f"{url}/simple")


def request(version: str = "1.0") -> SourceRequest:
    return SourceRequest(
        name="source-runtime",
        request=(f"fast-one=={version}",),
        source=Source(name="wheel", description="Published."),
    )


def test_resolve_sources_takes_the_source_distribution(served: Network, tmp_path: Path) -> None:
    lock = resolve_sources(request(), cache=tmp_path, network=served, run=Runner())
    assert lock.sdists == (replace(SDIST, size=0),)  # the stand-in tells no sizes
    assert parse(SourceLock, dumps(lock), lock.name) == lock
    with pytest.raises(LockError, match=r"no source distribution of fast-one 2\.0"):
        resolve_sources(request("2.0"), cache=tmp_path, network=served, run=Runner())


def test_sdist_folder_has_exactly_the_locked_files(served: Network, tmp_path: Path) -> None:
    lock = SourceLock(name="source-runtime", date=dt.date(2026, 1, 1), request=(), sdists=(SDIST,))
    folder = sdist_folder(lock, cache=tmp_path, network=served)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {SDIST.filename: DATA}
    other = replace(lock, sdists=(replace(SDIST, sha256="0" * 64),))
    with pytest.raises(LockError):
        sdist_folder(other, cache=tmp_path, network=served)
    assert sdist_folder(lock, cache=tmp_path, network=Network(index="http://127.0.0.1:1")) == folder


@pytest.mark.parametrize(
    ("sdist", "state"),
    [
        (SDIST, UNCHANGED),
        (replace(SDIST, sha256="0" * 64), ALTERED),
        (replace(SDIST, filename="fast_one-1.1.tar.gz"), VANISHED),
    ],
)
def test_check_finds_what_became_of_a_source_distribution(
    served: Network, tmp_path: Path, sdist: LockedSdist, state: str
) -> None:
    item = request()
    lock = SourceLock(name=item.name, date=dt.date(2026, 1, 1), request=(), sdists=(sdist,))
    item.path(tmp_path).write_text(dumps(lock))
    with PackageIndex(served) as index:
        [finding] = check(
            item, tmp_path, Resolver(root=tmp_path, network=served, run=Runner()), index
        )
    assert finding.state == state


@pytest.mark.parametrize(
    ("standard", "compiler", "given", "expected"),
    [
        ("c++20", "nvcc", "-std=c++17 -c a.cu", "-std=c++20 -c a.cu G"),
        ("", "nvcc", "-std=c++17 -c a.cu", "-std=c++17 -c a.cu G"),
        ("c++20", "nvcc", "--std c++14 -O3", "--std c++20 -O3 G"),
        ("", "nvcc", "-std c++14 -O3", "-std c++14 -O3 G"),
        ("", "nvcc", "-gencode arch=compute_80,code=sm_80 -O3", "-O3 G"),
        (
            "",
            "nvcc",
            "-gencode=x --generate-code=y -arch=sm_80 --gpu-architecture sm_90 -c",
            "-c G",
        ),
        (
            "",
            "nvcc",
            "--generate-dependencies-with-compile --dependency-output a.d -o a.o",
            "-MD -MF a.d -o a.o G",
        ),
        ("c++20", "g++", "-MMD -MF a.d -std=c++17 -c a.cpp", "-MMD -MF a.d -std=c++20 -c a.cpp"),
        ("c++20", "g++", "-DNAME='a b' -c", "-DNAME='a b' -c"),
    ],
)
def test_extension_replaces_standard_and_architectures(
    root: Path, tmp_path: Path, standard: str, compiler: str, given: str, expected: str
) -> None:
    program = tmp_path / "extension"
    shutil.copy(root / "scripts" / "image" / "source" / "extension", program)
    launcher = tmp_path / "compile"
    launcher.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    launcher.chmod(0o755)
    environment = {**os.environ, "STANDARD": standard, "GENCODE": "G"}
    command = ["sh", str(program), f"/usr/bin/{compiler}", *shlex.split(given)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"/usr/bin/{compiler}", *shlex.split(expected)]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("sm_90", ""),
        ("sm_80", "no machine code for 9.0"),
        ("sm_80 sm_90", "machine code for 8.0, which was not asked for"),
        ("", ""),  # a library of a package without machine code
    ],
)
def test_extension_problems_are_of_its_machine_code(
    tmp_path: Path, listed: str, message: str
) -> None:
    lines = "\n".join(f"ELF file 1: x.1.{name}.cubin" for name in listed.split())
    tool = tmp_path / "cuobjdump"
    tool.write_text(f'#!/bin/sh\n[ "$1" != --list-elf ] || cat <<E\n{lines}\nE\n')
    tool.chmod(0o755)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x.so").write_bytes(b"")
    found = list(gate.extension_problems({"arches": "9.0"}, tmp_path / "files", "", tmp_path))
    assert (message in " ".join(found)) if message else (found == [])


@pytest.fixture
def project(
    image: tuple[Config, ImageSpec, ImageLock], tmp_path: Path, root: Path
) -> Callable[..., tuple[Extra, ...]]:
    """What `compiled_extras` finds for a user's own image with these requirements."""
    config, _, lock = image
    plain = replace(lock, sources=None, tools=None, tool_debs=None)

    def find(*lines: str, **table: object) -> tuple[Extra, ...]:
        (tmp_path / "requirements.txt").write_text("\n".join(lines))
        own = Own(name="app", requirements="requirements.txt", root=tmp_path, **table)  # type: ignore[arg-type]
        ours = replace(config, own=own)
        resolver = Resolver(root=root, network=Network(), run=Runner())
        return compiled_extras(ours, choose_own(ours), plain, resolver)

    return find


@pytest.mark.parametrize("line", ["fast-one", "Fast_One>=0.5", "fast.one ; python_version > '3'"])
def test_compiled_extras_are_those_that_requirements_name(
    project: Callable[..., tuple[Extra, ...]], line: str
) -> None:
    assert project("einops", line, arch=("9.0",)) == (EXTRA,)
    assert project("einops", "fast-one; python_version < '3'", arch=("9.0",)) == ()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"arch": ("10.0",)}, "fast-one: fast is compiled for 8.0, 9.0, 12.0 only"),
        ({"arch": ("9.0",), "cuda": "12.8"}, "fast-one: fast is not compiled for CUDA 12.8"),
        ({"arch": ("9.0",), "source": "fork"}, "fast-one: the wheels of fast are compiled for"),
    ],
)
def test_compiled_extras_say_why_not(
    project: Callable[..., tuple[Extra, ...]], table: dict[str, object], message: str
) -> None:
    with pytest.raises(LockError, match=message):
        project("fast-one", **table)
