"""The order in which Ninja begins the units of a tree."""

from __future__ import annotations

from pathlib import Path

import order
import units

# As CMake writes it.
TEXT = """\
ninja_required_version = 1.5
include CMakeFiles/rules.ninja

build all: phony libc10.so

build c10/a.cpp.o: CXX_COMPILER__c10_unscanned_Release /src/torch/c10/a.cpp || order
  DEFINES = -DA
  FLAGS = -O2

build flash.cu.o: CUDA_COMPILER__cuda_unscanned_Release /src/torch/flash_attn/flash.cu
  DEFINES = -DB

build libc10.so: CXX_SHARED_LIBRARY_LINKER__c10_Release c10/a.cpp.o flash.cu.o b.cpp.o

build b.cpp.o: CXX_COMPILER__c10_unscanned_Release /src/torch/c10/b.cpp
  DEFINES = $
-DC
"""


def times(folder: Path, **seconds: int) -> units.Ledger:
    for name, spent in seconds.items():
        file = folder / units.name(f"build/{name}.cpp.o")
        file.write_text(f"{spent * 1000} /src/torch/c10/{name}.cpp\n")
    return units.Ledger(folder=folder)


def test_only_units_move_and_nothing_is_lost(tmp_path: Path) -> None:
    expected = order.expected(times(tmp_path, b=300), "build", ("*/flash_attn/*",))
    made = order.sort(TEXT, expected)
    pieces = list(order._statements(made))
    assert sorted(pieces) == sorted(order._statements(TEXT))
    built = [piece.split()[1] for piece in pieces if piece.startswith("build")]
    assert built == ["all:", "b.cpp.o:", "flash.cu.o:", "c10/a.cpp.o:", "libc10.so:"]
    assert made.startswith("ninja_required_version = 1.5\ninclude CMakeFiles/rules.ninja\n")
    assert "-DC\nbuild flash" in made.replace("\n\n", "\n")
