"""Compiled kernels kept between processes, and the import of FlashAttention-4 that leaves much out."""

from __future__ import annotations

import gc
import hashlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.scripts import load


@pytest.fixture(scope="module")
def kept() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        package = load("scripts/image/attention/__init__.py")
        patch.setitem(sys.modules, "torch_image_attention", package)
        yield load("scripts/image/attention/kept.py")


@pytest.fixture
def loading() -> ModuleType:
    return load("scripts/image/attention/loading.py")


@pytest.fixture(autouse=True)
def _loud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_IMAGE_QUIET", raising=False)


class Compiled:
    """A compiled function: its machine code is a text."""

    def __init__(self, code: str) -> None:
        self.code = code

    def export_to_c(self, *, object_file_path: str, function_name: str) -> None:
        assert function_name == "func"
        Path(object_file_path).write_text(self.code)


def load_code(file: Path) -> Compiled:
    return Compiled(file.read_text())


def kernels(kept: ModuleType, path: Path | None, step: str = "forward pass") -> Any:
    """A new process with this folder."""
    return kept.Kernels({}, kept.Folder(path, load_code), step)


def compile_into(cache: Any, key: object, code: str) -> None:
    assert key not in cache
    cache[key] = Compiled(code)


def test_a_later_process_finds_what_was_compiled(
    kept: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "folder"
    first = kernels(kept, folder)
    compile_into(first, ("fp16", 128), "A")
    compile_into(first, ("fp16", 64), "B")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(
        "torch-images: compiled attention's forward pass (FlashAttention-4) in 0.0 s, kept in "
    )
    assert all(file.name.split(".")[1] == checksum(file) for file in folder.iterdir())
    assert folder.stat().st_mode & 0o777 == 0o700
    second = kernels(kept, folder)
    assert ("fp16", 128) in second
    assert second["fp16", 128].code == second.last.code == "A"
    assert ("bf16", 128) not in second
    assert capsys.readouterr().err == ""


def checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("damage", ["", "A torn fil"])
def test_compile_damaged_file_again_with_one_warning(
    kept: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    """It is never loaded: machine code of which a part is zeros ends the process."""
    compile_into(kernels(kept, tmp_path), 1, "A whole file")
    [file] = tmp_path.iterdir()
    file.write_text(damage)
    capsys.readouterr()
    cache = kernels(kept, tmp_path)
    compile_into(cache, 1, "A whole file")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        f"torch-images: {file} is damaged; this kernel of FlashAttention-4 is compiled again"
    )
    assert len(lines) == 2
    assert 1 in kernels(kept, tmp_path)
    assert [f.read_text() for f in tmp_path.iterdir()] == ["A whole file"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("when", ["export_to_c", "rename"])
def test_a_folder_that_fails_is_left_alone(
    kept: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    """A full disk, or a server that is gone. The function is there all the same."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    where: type = Compiled if when == "export_to_c" else Path
    monkeypatch.setattr(where, when, fail)
    cache = kernels(kept, tmp_path)
    compile_into(cache, 1, "A")
    compile_into(cache, 2, "B")
    assert (cache[1].code, cache[2].code) == ("A", "B")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        f"torch-images: kernels of FlashAttention-4 are not kept in {tmp_path}: "
        "[Errno 28] No space left on device"
    )
    assert [line.rpartition(", ")[2] for line in lines[1:]] == ["not kept", "not kept"]
    assert list(tmp_path.iterdir()) == []


MODULES = {
    "quack/__init__.py": """
import sys
if "quack.kernels" in sys.modules:
    raise RuntimeError("twice")
__version__ = "1"
import quack.dsl as _dsl
from quack.kernels import kernels
""",
    "quack/dsl.py": "",
    "quack/small.py": "import quack.dsl\nfrom quack import dsl\n",
    "quack/kernels.py": "from quack import __version__, small\ndef kernels(): return __version__\n",
    "quack/more.py": "from quack import kernels\n",
    "flash_attn/cute/interface.py": """
import gc
from quack.small import dsl
from quack import small
try:
    from triton.tools.disasm import extract
except ImportError:
    extract = None
collects = gc.isenabled()
""",
    "triton/tools/disasm.py": "extract = 1",
}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Stand-ins of quack, Triton and FlashAttention-4 that import each other as these do."""
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("CUTE_DSL_PTXAS_PATH", raising=False)
    monkeypatch.delenv("CUTE_CUBIN_PATH", raising=False)
    before, finders = set(sys.modules), list(sys.meta_path)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]
    sys.meta_path[:] = finders


def test_only_what_is_used_is_imported(loading: ModuleType, modules: None) -> None:
    finders = list(sys.meta_path)
    interface = loading.interface()
    assert interface.extract is None
    assert not interface.collects
    assert gc.isenabled()
    assert not {"quack", "quack.kernels", "triton.tools.disasm"} & set(sys.modules)
    assert importlib.import_module("triton.tools.disasm").extract == 1
    quack: Any = importlib.import_module("quack")
    assert quack.small is interface.small is sys.modules["quack.small"]
    assert quack.kernels() == "1"
    assert sys.meta_path == finders
    assert quack.__spec__.loader is quack.__loader__
    assert importlib.reload(sys.modules["quack.small"]) is interface.small


@pytest.mark.parametrize("name", ["quack.more", "quack"])
def test_a_program_that_imports_quack_gets_all_of_it(
    loading: ModuleType, modules: None, name: str
) -> None:
    """Whatever it imports first, and also after it only looked for it."""
    interface = loading.interface()
    assert importlib.util.find_spec("quack") is not None
    importlib.import_module(name)
    exec("import quack, quack.kernels, quack.small")  # noqa: S102  as a program does
    quack: Any = sys.modules["quack"]
    assert quack.kernels() == "1"  # the function, as its `__init__` leaves it
    assert quack.small is interface.small
    assert name == "quack.more" or not hasattr(quack, "more")
