"""Compiling for a while, and going on: a small tree that Ninja builds, with stand-ins for ccache,
a compiler, and `python -m build`. Integration tests have the real ones.
"""

from __future__ import annotations

import errno
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import compiling
import progress
import pytest
import units
from compiling import Limits

from tests.servers import closed_port
from torch_images.jobs import Jobs

UNITS = 6
# Keeps objects by source and name, and notes for each whether it was there.
CCACHE = """#!/bin/sh
object=$4 source=$6
key=$CCACHE_DIR/$(cat "$source" - <<X | cksum | cut -d' ' -f1
$object
X
)
found=direct_cache_hit
[ -e "$key" ] || { found=cache_miss; "$@" && cp "$object" "$key"; } || exit
cp "$key" "$object"
printf '# %s\\n%s\\n' "$source" $found >>"$CCACHE_STATSLOG"
"""
# Obeys its source, which may ask it to wait, or to fail.
COMPILER = """#!/bin/sh
eval "$(sed -n 's,^//run ,,p' "$5")"
cp "$5" "$3"
"""
BUILD = """
import os, pathlib, subprocess, sys
print("-- configured")
done = subprocess.run(["ninja", "-C", "build", "-j", os.environ["MAX_JOBS"]]).returncode
if done and not os.environ.get("TOLERANT"):
    sys.exit(done)
pathlib.Path("dist").mkdir()
pathlib.Path("dist/x.whl").touch()
"""
ALL = Limits()
JOBS = Jobs(jobs=1, heavy=1, threads=1)

pytestmark = pytest.mark.skipif(not shutil.which("ninja"), reason="there is no Ninja")


@dataclass
class Builder:
    """A machine that compiles: its cache, and a place for the tree that each build has anew."""

    top: Path
    cache: Path
    launcher: Path

    def source(self, number: int, text: str) -> None:
        (self.top / "origin" / f"u{number}.cpp").write_text(text)

    def build(
        self,
        recipe: str = "recipe",
        chosen: Jobs = JOBS,
        limits: Limits = ALL,
        **env: str,
    ) -> tuple[int | str | None, str]:
        """Why it ended, 0 if it is compiled, and the log."""
        work = self.top / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(self.top / "origin", work / "tree")
        environment = {
            "PATH": f"{self.top}/bin:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(self.top / "python"),
            "CCACHE_DIR": str(self.cache),
            "CMAKE_CXX_COMPILER_LAUNCHER": str(self.launcher),
            **env,
        }
        ledger = units.Ledger.open(self.top / "units", "tree-9.0", recipe)
        try:
            log = compiling.compile_tree(
                "tree",
                work / "tree",
                chosen,
                environment,
                limits=limits,
                ledger=ledger,
                work=work,
            )
        except SystemExit as end:
            return end.code, ""
        assert (work / "tree" / "dist" / "x.whl").exists()
        return 0, log

    def counts(self) -> tuple[int, int]:
        """How many units came from the cache, and how many from a compiler."""
        lines = (self.top / "work" / "state" / "finished").read_text().splitlines()
        origins = [line.split()[2] for line in lines]
        return origins.count("cache"), origins.count("compiler")


def make_builder(top: Path, cache: Path, root: Path) -> Builder:
    for folder in ("bin", "python", "origin/build"):
        (top / folder).mkdir(parents=True)
    cache.mkdir(exist_ok=True)
    for program, text in (("ccache", CCACHE), ("g++", COMPILER)):
        (top / "bin" / program).write_text(text)
        (top / "bin" / program).chmod(0o755)
    (top / "python" / "build.py").write_text(BUILD)
    launcher = root / "scripts" / "image" / "source" / "compile"
    objects = [f"u{n}.o" for n in range(UNITS)]
    rules = [
        "rule CXX_COMPILER__a",
        f"  command = {launcher} g++ -O2 -o $out -c $in",
        "rule link",
        "  command = cat $in > $out",
        *(f"build u{n}.o: CXX_COMPILER__a ../u{n}.cpp" for n in range(UNITS)),
        f"build liba.so: link {' '.join(objects)}",
    ]
    (top / "origin" / "build" / "build.ninja").write_text("\n".join(rules) + "\n")
    builder = Builder(top, cache, launcher)
    for number in range(UNITS):
        builder.source(number, f"int u{number};\n")
    return builder


@pytest.fixture
def builder(tmp_path: Path, root: Path) -> Builder:
    return make_builder(tmp_path, tmp_path / "cache", root)


def test_build_resumes_after_a_slice(builder: Builder) -> None:
    """The unit that waits for the end of the slice was begun in time, so it is finished."""
    wait = (
        '//run while [ -n "$DEADLINE" ] && [ "$(date +%s)" -lt "$DEADLINE" ]; do sleep 0.1; done\n'
    )
    for number in range(2, UNITS):
        builder.source(number, wait + f"int u{number};\n")
    ended, _ = builder.build(limits=Limits(deadline=int(time.time()) + 4))
    assert str(ended).startswith(f"build-wheel: unfinished: tree: 3 of {UNITS} units compiled, ")
    assert not (builder.top / "work" / "tree" / "dist").exists()
    assert builder.counts() == (0, 3)
    assert builder.build()[0] == 0
    assert builder.counts() == (3, UNITS - 3)


def test_build_starts_the_longest_units_first(builder: Builder) -> None:
    """Else the longest may begin last, and all other processors wait for it."""
    ledger = units.Ledger.open(builder.top / "units", "tree-9.0", "another recipe")
    for number, milliseconds in ((4, 90_000), (2, 8_000), (0, 10)):
        name = units.name(f"build/u{number}.o")
        (ledger.folder / name).write_text(f"{milliseconds} u{number}.cpp\n")
    assert builder.build()[0] == 0
    begun = (builder.top / "work" / "state" / "finished").read_text().split("\n")
    order = [units.name(f"build/u{number}.o") for number in (4, 2, 1, 3, 5, 0)]
    assert [line.partition(" ")[0] for line in begun if line] == order


def test_two_shares_and_one_that_collects(builder: Builder, tmp_path: Path, root: Path) -> None:
    """Builders with ledgers of their own and one cache."""
    counts = []
    for share in ("1/2", "2/2"):
        one = make_builder(tmp_path / share.replace("/", "-"), builder.cache, root)
        ended, _ = one.build(limits=Limits(share=share))
        start, _, rest = str(ended).partition("tree: ")
        assert start == f"build-wheel: unfinished: share {share} of "
        done, _, rest = rest.partition(" of ")
        assert rest.startswith(f"{UNITS} units compiled, ")
        assert one.counts() == (0, int(done))
        counts.append(int(done))
    assert sum(counts) == UNITS
    assert all(counts)
    assert builder.build()[0] == 0
    assert builder.counts() == (UNITS, 0)


KILLED = "//run echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1\n"


def test_out_of_memory_with_fewer_jobs(builder: Builder, capfd: pytest.CaptureFixture[str]) -> None:
    builder.source(1, f"{KILLED.replace('//run ', '//run [ $MAX_JOBS = 1 ] || { ').strip()}; }}\n")
    assert builder.build(chosen=Jobs(jobs=4, heavy=1, threads=1))[0] == 0
    out = capfd.readouterr().out
    assert out.index("continuing with 2 jobs") < out.index("continuing with 1 jobs")


def test_too_little_memory_for_one_file_names_it(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder.source(4, f"//run sleep 1.5\n{KILLED}")
    peak = progress.Peak(size=4_400_000_000, what="cc1plus u4.cpp")
    monkeypatch.setattr(progress, "largest", lambda: peak)
    ended, _ = builder.build()
    assert ended == (
        "build-wheel: tree: out of memory with one job, at build/../u4.cpp; "
        "the largest, cc1plus u4.cpp, took 4.4 GB"
    )


def test_build_on_a_full_disk_keeps_the_cache(builder: Builder) -> None:
    output = (
        "//run echo \"can't write section .rodata of x.o: 'No space left on device'\" >&2; exit 1\n"
    )
    builder.source(3, output)
    ended, _ = builder.build()
    assert str(ended).startswith(
        f"build-wheel: the disk is full: tree: 3 of {UNITS} units compiled, "
    )


@pytest.mark.parametrize("way", ["redis://:secret@127.0.0.1:{}|share=2", "http://127.0.0.1:{}/x"])
def test_build_with_an_unreachable_shared_cache(builder: Builder, way: str) -> None:
    port = closed_port()
    ended, _ = builder.build(CCACHE_REMOTE_STORAGE=f"file:/there {way.format(port)}")
    assert str(ended).startswith(
        "build-wheel: tree: the shared compile cache does not answer: "
        f"127.0.0.1:{port}: [Errno {errno.ECONNREFUSED}] "
    )
    assert "secret" not in str(ended)


def test_planned_units_of_ninja(builder: Builder) -> None:
    tree = builder.top / "origin"
    planned = units.planned(tree, str(builder.launcher), "/usr/local/bin:/usr/bin:/bin")
    assert planned.keys() == {units.name(f"build/u{n}.o") for n in range(UNITS)}
    inside = tree / "build" / "CMakeFiles" / "CMakeScratch"
    inside.mkdir(parents=True)
    shutil.copy(tree / "build" / "build.ninja", inside)
    assert units.planned(tree, str(builder.launcher), "/usr/bin:/bin:/usr/local/bin") == planned
    assert units.planned(tree, str(builder.launcher), str(builder.top / "bin")) == {}


def test_trees_of_one_call_share_a_slice(tmp_path: Path) -> None:
    notes = tmp_path / "units" / "slice.json"
    first = Limits.read({"slice": 60, "call": "a"}, notes)
    assert time.time() + 50 < first.deadline <= time.time() + 61
    notes.write_text(json.dumps({"call": "a", "deadline": 5}))
    assert Limits.read({"slice": 60, "call": "a"}, notes) == Limits(deadline=5)
    assert Limits.read({"slice": 60, "call": "b"}, notes).deadline > 5
    assert Limits.read({"jobs": 2}, notes) == Limits()
    assert Limits.read({"share": "1/2"}, notes) == Limits(share="1/2")


def test_screen_shows_the_beginning_and_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """BuildKit drops what a step prints after 2 MiB, and with it why the step failed."""
    screen = compiling.Screen(left=30)
    for number in range(1000):
        screen.show(f"line {number}\n")
    assert capsys.readouterr().out.startswith(
        "line 0\nline 1\nline 2\nline 3\nline 4\n(more output"
    )
    screen.end()
    last = capsys.readouterr().out.splitlines()
    assert last == [f"line {number}" for number in range(800, 1000)]
    screen = compiling.Screen()
    screen.show("x" * 100_000 + "\n")
    assert len(capsys.readouterr().out) < 3000


@pytest.mark.parametrize(
    ("count", "hits", "line"),
    [
        ((100, 50, 50), 30, "50 of 100 units, 30 from the cache, about 10 min left"),
        ((100, 50, 0), 45, "50 of 100 units, 45 from the cache"),
        ((0, 50, 0), 0, "50 of an unknown number of units, 0 from the cache"),
    ],
)
def test_progress_line(count: tuple[int, int, int], hits: int, line: str) -> None:
    planned, passed, known = count
    counted = progress.Count(planned=planned, passed=passed, known=known)
    assert progress.line(counted, hits, 600) == line


def test_the_largest_compiler(tmp_path: Path) -> None:
    for number, (program, size, words) in enumerate(
        [
            ("cc1plus", 900, ["cc1plus", "-quiet", "/src/torch/aten/x.cpp", "-o", "/tmp/x.s"]),
            ("cicc", 2_000_000, ["cicc", "--orig_src_file_name", "/src/k.cu", "k.cpp1.ii"]),
            ("python3", 9_000_000, ["python3", "setup.py"]),
            ("ptxas", 1, ["ptxas"]),
        ]
    ):
        folder = tmp_path / str(number + 1)
        folder.mkdir()
        (folder / "status").write_text(f"Name:\t{program}\nVmPeak:\t 1 kB\nVmHWM:\t {size} kB\n")
        (folder / "cmdline").write_text("\0".join(words) + "\0")
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "status").write_text("Name:\tcc1plus\n")  # a zombie has no memory
    (tmp_path / "9" / "cmdline").write_text("")
    (tmp_path / "10").mkdir()
    (tmp_path / "10" / "status").write_text("Name:\tcicc\nVmHWM:\t 9000000 kB\n")
    (tmp_path / "10" / "cmdline").write_text("")  # it ended between the two reads
    assert progress.largest(tmp_path) == progress.Peak(size=2_048_000_000, what="cicc /src/k.cu")
    assert [str(progress.Peak(size=size)) for size in (2_048_000_000, 46_000_000)] == [
        "2.0 GB",
        "46 MB",
    ]
