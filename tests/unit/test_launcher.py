"""The launcher of compilers, run by a real shell with a stand-in for ccache and for compilers."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import compiling
import pytest
from units import Share, name

# Finds nothing, but what a test says that it finds.
CCACHE = """#!/bin/sh
echo "$@" >>"$CALLS"
[ -z "${CCACHE_DISABLE:-}" ] || exec "$@"
printf '# x\\n%s\\n' "${FOUND:-cache_miss}" >>"$CCACHE_STATSLOG"
exec "$@"
"""
# Copies its source to its object; fails for a source that says so, as a compiler would.
COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in -o) shift; object=$1 ;; -c) shift; source=$1 ;; esac
    shift
done
grep -q '#error' "$source" && exit 3
eval "$(sed -n 's,^//run ,,p' "$source")"
cp "$source" "$object"
"""


@dataclass
class Tree:
    """A tree, its build folder, and what the launcher is told."""

    top: Path
    launcher: Path
    more: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": f"{self.top}/bin:{os.environ['PATH']}",
            "CALLS": str(self.top / "calls"),
            "SOURCE_TREE": str(self.top / "tree"),
            "HEAVY_PLACES": "1",
            "HEAVY_THREADS": "2",
            "HEAVY_FILES": "*/flash_attn/* */fbgemm/*",
            "KILLED": compiling.KILLED.pattern,
            "STATE": str(self.top / "state"),
            "UNITS": str(self.top / "units"),
            **self.more,
        }

    def source(self, path: str, text: str = "int x;\n") -> Path:
        file = self.top / "tree" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def command(self, source: str, compiler: str = "g++", object_: str = "") -> list[str]:
        object_ = object_ or f"{Path(source).stem}.o"
        return ["sh", str(self.launcher), compiler, "-O2", "-o", object_, "-c", f"../{source}"]

    def compile(self, source: str, compiler: str = "g++", object_: str = "") -> int:
        """Run the launcher as Ninja does, from the build folder; its exit status."""
        command = self.command(source, compiler, object_)
        build = self.top / "tree" / "build"
        return subprocess.run(command, cwd=build, env=self.env, check=False).returncode

    def calls(self) -> list[str]:
        path = self.top / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def state(self, file: str) -> str:
        path = self.top / "state" / file
        return path.read_text() if path.exists() else ""

    def ledger(self) -> dict[str, str]:
        return {p.name: p.read_text() for p in sorted((self.top / "units").iterdir())}


@pytest.fixture
def tree(tmp_path: Path, root: Path) -> Tree:
    for folder in ("bin", "state", "units", "tree/build"):
        (tmp_path / folder).mkdir(parents=True)
    programs = {"ccache": CCACHE, "g++": COMPILER, "nvcc": COMPILER}
    for program, text in programs.items():
        (tmp_path / "bin" / program).write_text(text)
        (tmp_path / "bin" / program).chmod(0o755)
    return Tree(tmp_path, root / "scripts" / "image" / "source" / "compile")


def test_launcher_compiles_and_records_a_unit(tree: Tree) -> None:
    tree.source("aten/x.cpp", "//run sleep 0.05\n")
    assert tree.compile("aten/x.cpp") == 0
    seed = f"{tree.top}/tree/build/../aten/x.cpp".removeprefix(f"{tree.top}/tree/")
    [call] = tree.calls()
    assert call == (
        f"g++ -O2 -o x.o -c ../aten/x.cpp -frandom-seed={seed} -ffile-prefix-map={tree.top}/tree=."
    )
    unit = hashlib.sha256(b"build/x.o").hexdigest()[:16]
    assert unit == name("build/x.o")
    [(compiled, text)] = tree.ledger().items()
    milliseconds, source = text.split()
    assert (compiled, source) == (unit, seed)
    assert 50 <= int(milliseconds) < 60_000
    assert tree.state("finished") == f"{unit} {milliseconds} compiler {seed}\n"
    assert {p.name for p in (tree.top / "state").iterdir()} == {"finished"}


def test_launcher_keeps_the_compile_time_of_cached_units(tree: Tree) -> None:
    tree.source("x.cpp")
    unit = tree.top / "units" / name("build/x.o")
    unit.write_text("123456 x.cpp\n")
    os.utime(unit, (1, 1))
    tree.more = {"FOUND": "direct_cache_hit"}
    assert tree.compile("x.cpp") == 0
    assert unit.read_text() == "123456 x.cpp\n"
    assert unit.stat().st_mtime > 1  # compiled since this recipe is in use
    assert tree.state("finished").split()[2] == "cache"
    unit.unlink()
    assert tree.compile("x.cpp") == 0  # another builder's
    assert unit.exists()
    tree.more = {}
    unit.write_text("123456 x.cpp\n")
    assert tree.compile("x.cpp") == 0
    assert int(unit.read_text().split()[0]) < 123456


def test_launcher_records_no_failed_unit(tree: Tree) -> None:
    tree.source("x.cpp", "#error\n")
    (tree.top / "units" / name("build/x.o")).write_text("9 x.cpp\n")
    assert tree.compile("x.cpp") == 3
    assert tree.ledger() == {}
    assert tree.state("finished") == ""
    assert tree.state("failed").endswith("x.cpp\n")
    assert not (tree.top / "state" / "refused").exists()


@pytest.mark.parametrize(("options", "cached"), [([], False), (["-MD"], True), (["-MMD"], True)])
def test_nvcc_without_a_list_of_what_it_read_is_not_cached(
    tree: Tree, options: list[str], cached: bool
) -> None:
    tree.source("x.cu")
    command = [*tree.command("x.cu", "nvcc"), *options]
    subprocess.run(command, cwd=tree.top / "tree" / "build", env=tree.env, check=True)
    tree.more = {"FOUND": "direct_cache_hit"}
    subprocess.run(command, cwd=tree.top / "tree" / "build", env=tree.env, check=True)
    assert tree.state("finished").split()[6] == ("cache" if cached else "compiler")


GCC = "g++: fatal error: Killed signal terminated program cc1plus"
NVCC = "nvcc error   : 'ptxas' died due to signal 9 (Kill signal)"


@pytest.mark.parametrize("message", [GCC, NVCC])
def test_launcher_runs_a_killed_compiler_again(
    tree: Tree, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the first one said is not shown: it would look like a lack of memory later on."""
    once = f'[ -e "$STATE/once" ] || {{ touch "$STATE/once"; echo "{message}" >&2; exit 4; }}'
    tree.source("x.cpp", f"//run {once}; echo a warning >&2\n")
    assert tree.compile("x.cpp") == 0
    assert len(tree.calls()) == 2
    assert tree.state("again").endswith("x.cpp\n")
    assert tree.ledger().keys() == {name("build/x.o")}
    shown = capfd.readouterr().err
    assert "tried again, because the compiler was killed: build/../x.cpp\na warning\n" in shown
    assert message not in shown
    assert not list((tree.top / "state").glob("said-*"))


def test_launcher_refuses_units_after_the_deadline(tree: Tree) -> None:
    tree.source("x.cpp")
    tree.more = {"DEADLINE": str(int(time.time()) + 60)}
    assert tree.compile("x.cpp") == 0
    tree.more = {"DEADLINE": str(int(time.time()))}
    assert tree.compile("x.cpp", object_="y.o") == 75
    assert (tree.top / "state" / "refused").exists()
    assert len(tree.calls()) == 1
    assert tree.ledger().keys() == {name("build/x.o")}


@pytest.mark.parametrize("folder", ["CMakeScratch/TryCompile-abc", "CMakeTmp"])
def test_launcher_always_runs_probes_of_cmake(tree: Tree, folder: str) -> None:
    """A refusal would switch a feature off, and change the keys of all that follows."""
    tree.source("x.cpp")
    tree.more = {"DEADLINE": "1", "SHARE": "1/2"}
    (tree.top / "tree" / "build" / "CMakeFiles" / folder).mkdir(parents=True)
    for number in range(4):
        assert tree.compile("x.cpp", object_=f"CMakeFiles/{folder}/{number}.o") == 0
    assert not tree.calls()
    assert not tree.ledger()
    assert not (tree.top / "state" / "refused").exists()


def test_share_has_each_unit_once(tree: Tree) -> None:
    names = [f"u{number}" for number in range(12)]
    compiled: dict[str, set[str]] = {}
    for share in ("1/3", "2/3", "3/3"):
        tree.more = {"SHARE": share}
        for unit in names:
            source = tree.source(f"{unit}.cpp")
            done = tree.compile(f"{unit}.cpp")
            assert done in (0, 75)
            assert (done == 0) == Share.parse(share).has(name(f"build/{unit}.o"), str(source))
            compiled.setdefault(share, set()).update({unit} if done == 0 else set())
    assert sorted(u for units in compiled.values() for u in units) == sorted(names)
    assert all(compiled.values())


@pytest.mark.skipif(not shutil.which("flock"), reason="flock is util-linux's")
def test_heavy_files_wait_for_each_other(tree: Tree) -> None:
    """And only they: each notes when it begins and ends, in nanoseconds."""
    note = '//run date +%s%N >>"$CALLS.$object"; sleep 0.2; date +%s%N >>"$CALLS.$object"\n'
    paths = ["flash_attn/a.cu", "flash_attn/b.cu", "fbgemm/c.cpp", "aten/d.cpp"]
    for path in paths:
        tree.source(path, note)
    build = tree.top / "tree" / "build"
    running = []
    for path in paths:
        compiler = "nvcc" if path.endswith(".cu") else "g++"
        command = tree.command(path, compiler)
        running.append(subprocess.Popen(command, cwd=build, env=tree.env))
    assert [process.wait() for process in running] == [0] * 4
    times = [tuple(map(int, (tree.top / f"calls.{o}.o").read_text().split())) for o in "abc"]
    ordered = sorted(times)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(ordered))
    calls = {call.split("-c ")[1].split()[0]: call for call in tree.calls()}
    assert calls["../flash_attn/a.cu"].endswith(" --threads=2")
    assert "--threads" not in calls["../fbgemm/c.cpp"]
