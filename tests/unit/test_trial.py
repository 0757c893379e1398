"""Loading a packed wheel, with real libraries that a real compiler and loader made and read."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest
import trial

CODE = "import ctypes, pathlib; ctypes.CDLL(str(pathlib.Path(__file__).parent / 'lib/libown.so'))"
MANY = ["aa", "bb", "cc", "dd", "ee"]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The site-packages of a build, with a library of NVIDIA's and another release of the wheel."""
    folder = tmp_path / "site"
    shared(folder / "nvidia" / "cu13" / "lib" / "libstandin.so.13", "int cudaFree(void){return 1;}")
    (folder / "own").mkdir()
    (folder / "own" / "__init__.py").write_text("raise ImportError('of the build')")
    (folder / "own-1.dist-info").mkdir()
    (folder / "helper.py").write_text("")
    return folder


def shared(path: Path, text: str, *options: str, name: str = "") -> Path:
    """Compile C text to a shared library; undefined functions are no error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-x", "c", "-shared", "-fPIC", "-O0", "-o", str(path), "-", "-x", "none"]
    command += [f"-Wl,-soname,{name or path.name}", "-w", "-std=gnu11", *options]
    subprocess.run(command, input=text, text=True, check=True)
    return path


def packed(tmp_path: Path, text: str, *options: str, code: str = CODE) -> Path:
    """A wheel with a library below own/lib and a package."""
    files = tmp_path / "files"
    shared(files / "own" / "lib" / "libown.so", text, *options)
    (files / "own" / "__init__.py").write_text(code)
    (files / "own-2.dist-info").mkdir()
    wheel = tmp_path / "own-2-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted(files.rglob("*")):
            archive.write(path, path.relative_to(files))
    return wheel


def problems(tmp_path: Path, wheel: Path, site: Path) -> list[str]:
    return trial.problems(["own"], wheel, site, tmp_path / "trial")


def calls(*names: str) -> str:
    return "int all(void){return " + "+".join(f"{name}()" for name in names) + ";}"


def test_problems_of_a_sound_wheel(tmp_path: Path, site: Path) -> None:
    """Symbols of the C library, of the interpreter, of NVIDIA's package; and a weak one."""
    nvidia = site / "nvidia" / "cu13" / "lib"
    wheel = packed(
        tmp_path,
        "extern int perhaps(void) __attribute__((weak)); int other(void){return perhaps ? 1 : 0;}"
        + calls("abs", "PyLong_AsLong", "cudaFree"),
        str(nvidia / "libstandin.so.13"),
        "-Wl,-rpath,$ORIGIN/../../nvidia/cu13/lib",
    )
    assert problems(tmp_path, wheel, site) == []


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (MANY, "5 undefined symbols: aa, bb, cc, dd, ..."),
        (["abs", "aa", "PyLong_AsLong"], "1 undefined symbol: aa"),
        (["cuInit"], "1 undefined symbol: cuInit"),  # nothing says that the driver has it
    ],
)
def test_undefined_symbols(tmp_path: Path, site: Path, names: list[str], message: str) -> None:
    """Those of functions, too, which the loader would miss only when they are called."""
    wheel = packed(tmp_path, calls(*names), code="")
    assert problems(tmp_path, wheel, site) == [f"own/lib/libown.so has {message}"]


@pytest.mark.parametrize(
    ("library", "own", "other"),
    [
        ("libcuda.so.1", "cuInit", "nvmlInit_v2"),
        ("libnvidia-ml.so.1", "nvmlInit_v2", "cuInit"),
    ],
)
def test_problems_without_the_drivers_libraries(
    tmp_path: Path, site: Path, library: str, own: str, other: str
) -> None:
    """Their symbols count as theirs only in a library that asks for them."""
    stub = shared(tmp_path / "stubs" / library, f"int {own}(void){{return 34;}}")
    wheel = packed(tmp_path, calls(own), str(stub), code="")
    assert problems(tmp_path, wheel, site) == []
    wheel = packed_again(tmp_path, calls(own, other, "custom", "cublasCreate"), str(stub))
    assert trial.problems(["own"], wheel, site, tmp_path / "again") == [
        "own/lib/libown.so has 3 undefined symbols: "
        + ", ".join(sorted(["cublasCreate", "custom", other]))
    ]


def packed_again(tmp_path: Path, text: str, *options: str) -> Path:
    (tmp_path / "second").mkdir()
    return packed(tmp_path / "second", text, *options, code="")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import helper", ""),
        ("import pytest", "ModuleNotFoundError: No module named 'pytest'"),  # this environment's
        ("raise ValueError('first\\nsecond')", "second"),
        ("import os; os.kill(os.getpid(), 11)", "it ends with status -11"),
        (
            "import pathlib; raise OSError(pathlib.Path(__file__))",
            "OSError: own/__init__.py",
        ),
    ],
)
def test_problems_of_a_failing_import(tmp_path: Path, site: Path, code: str, message: str) -> None:
    """The wheel's own, and neither the one of the build nor anything outside of its site."""
    wheel = packed(tmp_path, calls("abs"), code=code)
    expected = [f"own cannot be imported: {message}"] if message else []
    assert problems(tmp_path, wheel, site) == expected


@pytest.mark.parametrize("cudnn", ["9, 24", "9, 19"])
def test_unimportable_with_another_cudnn(tmp_path: Path, cudnn: str) -> None:
    """Torch imports with another cuDNN than it was compiled with, and fails at its first use."""
    backend = tmp_path / "torch" / "backends"
    (backend / "cudnn").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("from torch.backends import cudnn\n")
    (backend / "cudnn" / "__init__.py").write_text(
        f"""
def version():
    if ({cudnn}) != (9, 24):
        raise RuntimeError("compiled against (9, 24), but found ({cudnn})")
"""
    )
    expected = ["torch does not fit what is beside it: RuntimeError: compiled against (9, 24), "
            "but found (9, 19)"] if cudnn == "9, 19" else []  # fmt: skip
    assert list(trial.unimportable(["torch"], tmp_path)) == expected


def test_problems_with_an_older_library(tmp_path: Path, site: Path) -> None:
    """The library is there, but not the version of it that the compiler linked with."""
    (tmp_path / "map").write_text("NEW_1 { global: new; };\n")
    script = f"-Wl,--version-script={tmp_path}/map"
    other = shared(tmp_path / "new" / "libother.so.1", "int new(void){return 1;}", script)
    (tmp_path / "map").write_text("OLD_1 { global: new; };\n")
    nvidia = site / "nvidia" / "cu13" / "lib" / "libother.so.1"
    shared(nvidia, "int new(void){return 1;}", script)
    search = "-Wl,-rpath,$ORIGIN/../../nvidia/cu13/lib"
    wheel = packed(tmp_path, calls("new"), str(other), search, code="")
    assert problems(tmp_path, wheel, site)[0] == (
        "own/lib/libown.so needs a library of version NEW_1"
    )
