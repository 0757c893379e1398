"""Memory of the GPU: the allocators that can be chosen, and how much tensors and models take."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.container.gpu import needs, needs_gpus, taken
from tests.container.processes import ALLOCATOR, SETTING, child, environment, ranks

pytestmark = pytest.mark.gpu
Observe = Callable[[str, object], None]
MIB = 1 << 20

# A product is compared with float64, and so are 20 tensors on a second stream that reuse memory.
ASYNC = """
import json, torch
assert torch.cuda.get_allocator_backend() == "cudaMallocAsync", torch.cuda.get_allocator_backend()
torch.set_float32_matmul_precision("highest")
a, b = (torch.randn(512, 512, device="cuda") for _ in range(2))
wanted = a.double() @ b.double()
error = float(((a @ b).double() - wanted).abs().max() / wanted.abs().max())
assert error < 2e-5, error
side = torch.cuda.Stream()
for n in range(1, 21):
    with torch.cuda.stream(side):
        x = torch.full((n << 16,), float(n), device="cuda")
        total = x.double().sum()
    side.synchronize()
    assert total.item() == n * (n << 16), n
del a, b, x, total, wanted
torch.cuda.synchronize()
before = torch.cuda.memory_allocated()
held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
print(json.dumps(torch.cuda.memory_allocated() - before))
"""


def test_cuda_malloc_async() -> None:
    """CUDA's own allocator of streams: the name, the results, and the bytes that it counts."""
    env = environment({SETTING: "backend:cudaMallocAsync"}, ALLOCATOR)
    assert json.loads(child(ASYNC, env=env).splitlines()[-1]) == 64 * MIB


# Prototypes in place of CUDA's headers, which images without a toolkit do not have.
ALLOCATOR_CODE = """
#include <cstddef>
#include <sys/types.h>
extern "C" {
int cudaMalloc(void **, size_t);
int cudaFree(void *);
long allocations = 0, frees = 0, bytes = 0;
void *counted_malloc(ssize_t size, int, void *) {
  void *found = nullptr;
  if (size <= 0 || cudaMalloc(&found, size) != 0) return nullptr;
  ++allocations;
  bytes += size;
  return found;
}
void counted_free(void *held, ssize_t, int, void *) {
  ++frees;
  cudaFree(held);
}
}
"""

PLUGGED = """
import ctypes, sys, torch
path = sys.argv[1]
mine = torch.cuda.memory.CUDAPluggableAllocator(path, "counted_malloc", "counted_free")
torch.cuda.memory.change_current_allocator(mine)
library = ctypes.CDLL(path)
count = lambda name: ctypes.c_long.in_dll(library, name).value
assert (count("allocations"), count("frees"), count("bytes")) == (0, 0, 0)
x = torch.full((3 << 20,), 2.0, device="cuda")
assert (count("allocations"), count("bytes")) == (1, 12 << 20), (count("allocations"), count("bytes"))
torch.set_float32_matmul_precision("highest")
a, b = (torch.randn(256, 256, device="cuda") for _ in range(2))
wanted = a.double() @ b.double()
error = float(((a @ b).double() - wanted).abs().max() / wanted.abs().max())
assert error < 2e-5, error
assert count("allocations") > 5
before = count("frees")
torch.cuda.synchronize()
del x
assert count("frees") == before + 1
print("served")
"""

# With more than one process, each adds its rank + 1: the sum is that of 1, 2 and so on.
POOLED = """
import ctypes, sys, torch, torch.distributed as dist
rank, size, store, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=size,
                        device_id=torch.device("cuda", rank))
mine = torch.cuda.memory.CUDAPluggableAllocator(path, "counted_malloc", "counted_free")
pool = torch.cuda.MemPool(mine.allocator())
allocations = ctypes.c_long.in_dll(ctypes.CDLL(path), "allocations")
assert allocations.value == 0
with torch.cuda.use_mem_pool(pool):
    x = torch.full((1 << 20,), rank + 1.0, device="cuda")
assert allocations.value == 1, allocations.value
dist.all_reduce(x)
assert bool((x == size * (size + 1) / 2).all())
dist.destroy_process_group()
# The pool before its allocator: otherwise torch 2.6 uses the allocator after its end (signal 11),
# when Python takes the module apart. https://github.com/pytorch/pytorch/pull/171962
del x
del pool
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of the allocator ALLOCATOR_CODE, compiled and linked with torch's CUDA runtime."""
    compiler = shutil.which("g++")
    if not compiler:
        pytest.skip("no g++ here, which compiles an allocator")
    torch.cuda.init()
    maps = Path("/proc/self/maps").read_text().splitlines()
    [runtime] = {line.split()[-1] for line in maps if "/libcudart.so" in line}
    folder = tmp_path_factory.mktemp("allocator")
    source, built = folder / "counted.cpp", folder / "libcounted.so"
    source.write_text(ALLOCATOR_CODE)
    command = [compiler, "-shared", "-fPIC", "-O1", str(source), runtime, "-o", str(built)]
    subprocess.run(command, check=True)
    return str(built)


def test_an_allocator_of_ones_own_serves_every_tensor(library: str) -> None:
    """Its counters say so; results are right, and what is deleted comes back to it at once."""
    env = environment({}, ALLOCATOR)
    assert child(PLUGGED, library, env=env).endswith("served\n")


@pytest.mark.parametrize("size", [1, 2])
def test_nccl_uses_memory_of_ones_own_allocator(size: int, library: str, tmp_path: Path) -> None:
    needs_gpus(size)
    # A pool of its own does not go with expandable segments, which the profile turns on.
    ranks(POOLED, size, tmp_path, library, env=environment({}, ALLOCATOR))


# Each tensor is larger than what is free, so a block that cannot grow is of no use to the next one.
GROWING = """
import json, torch
sizes = [(21 + 2 * n) << 20 for n in range(20)]
for size in sizes:
    x = torch.empty(size, dtype=torch.uint8, device="cuda")
    del x
found = torch.cuda.memory_stats()
print(json.dumps([found["reserved_bytes.all.peak"], found["num_alloc_retries"], sizes]))
"""


SHARED = """
import torch
def add(given, back):
    x = given.get()
    back.put(float(x.sum()))
    x.add_(1)
    del x
    back.put("done")
    given.get()
def main():
    context = torch.multiprocessing.get_context("spawn")
    given, back = context.Queue(), context.Queue()
    process = context.Process(target=add, args=(given, back))
    process.start()
    x = torch.full((1000, 1000), 2.0, device="cuda")
    given.put(x)
    assert back.get(timeout=300) == 2e6
    assert back.get(timeout=300) == "done"
    torch.cuda.synchronize()
    assert bool((x == 3).all())
    given.put(None)
    process.join()
    print(process.exitcode)
"""


def test_processes_share_a_tensor_as_containers_start(tmp_path: Path) -> None:
    """Expandable segments need pidfd_getfd, which Docker denies: then the start leaves them out."""
    (tmp_path / "shared.py").write_text(SHARED)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import shared; shared.main()"
    assert child(code, str(tmp_path)) == "0\n"


def test_expandable_segments_fragment_less(observe: Observe) -> None:
    """Tensors that grow, one at a time, from 21 to 59 MiB: reserved with and without the setting.

    Plain segments: one for each tensor, so their sum, each rounded up to 2 MiB. Expandable ones: the
    largest tensor, rounded up to 20 MiB, and one such step more.
    """
    reserved = {}
    for on in (True, False):
        env = environment({SETTING: f"expandable_segments:{on}"}, ALLOCATOR)
        reserved[on], retries, sizes = json.loads(child(GROWING, env=env).splitlines()[-1])
        assert retries == 0
    observe("reserved for 21 to 59 MiB", f"{reserved[True] >> 20} and {reserved[False] >> 20} MiB")
    assert reserved[False] == sum(-(-size // (2 * MIB)) * 2 * MIB for size in sizes)
    assert sizes[-1] <= reserved[True] <= sizes[-1] + 40 * MIB


BYTES = {
    torch.float64: 8,
    torch.float32: 4,
    torch.bfloat16: 2,
    torch.float16: 2,
    torch.float8_e4m3fn: 1,
    torch.float8_e5m2: 1,
}


@pytest.mark.parametrize("dtype", list(BYTES), ids=lambda d: str(d).removeprefix("torch."))
def test_a_models_memory_is_that_of_its_elements(dtype: torch.dtype, observe: Observe) -> None:
    """What the model asks for is exact. What the allocator gives is less than 1 MiB more a tensor."""
    widths = (1024, 4096, 1000, 17)
    layers = [torch.nn.Linear(a, b) for a, b in pairwise(widths)]
    count = sum(a * b + b for a, b in pairwise(widths))
    wanted = count * BYTES[dtype]
    found = taken(lambda: torch.nn.Sequential(*layers).to(dtype=dtype).to("cuda"))
    observe(f"model of {count} elements", f"{dtype}: {found[0]} bytes")
    assert found[0] == wanted
    assert wanted <= found[1] < wanted + 2 * len(layers) * MIB


def test_four_bits_take_half_a_byte() -> None:
    """Elements of FP4 are stored in pairs: an eighth of float32, a quarter of float16."""
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this release has no such type")
    shape = (1024, 1024)
    halves = taken(lambda: torch.zeros(shape, device="cuda", dtype=torch.float16))
    packed = (shape[0], shape[1] // 2)
    zeros = torch.zeros(packed, dtype=torch.uint8)
    found = taken(lambda: zeros.cuda().view(torch.float4_e2m1fn_x2))
    assert found[0] * 4 == halves[0] == 2 * shape[0] * shape[1]


def peak(backend: SDPBackend, length: int) -> int:
    """The bytes that attention takes for a moment, with its result, beyond its inputs."""
    q, k, v = (torch.randn(1, 4, length, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before: int = torch.cuda.memory_allocated()
    with sdpa_kernel(backend):
        F.scaled_dot_product_attention(q, k, v)
    torch.cuda.synchronize()
    most: int = torch.cuda.max_memory_allocated()
    return most - before


@pytest.mark.parametrize(
    "backend",
    [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION],
    ids=["efficient", "flash"],
)
def test_fused_attention_takes_less_memory(backend: SDPBackend, observe: Observe) -> None:
    """The plain formula keeps all scores, which are length squared. A fused kernel keeps none."""
    if backend is SDPBackend.FLASH_ATTENTION:
        needs(8, 0, "flash attention")
    length, heads, width = 4096, 4, 64
    result, scores = 2 * heads * length * width, 2 * heads * length * length
    plain, fused = peak(SDPBackend.MATH, length), peak(backend, length)
    observe(f"attention's memory, {backend.name}", f"{fused >> 20} of {plain >> 20} MiB")
    assert plain >= scores + result
    assert result <= fused < scores / 8
    assert peak(backend, 2 * length) < 3 * fused  # it grows as the length, not as its square


WORKSPACE = """
import torch
a = torch.randn(64, 64, device="cuda")
before = torch.cuda.memory_allocated()
a @ a
print(torch.cuda.max_memory_allocated() - before)
"""


def test_cublas_gets_a_workspace_of_32_mib(observe: Observe) -> None:
    """By default, on Hopper and newer: as much as eight buffers of 4 MiB, which a setting asks for."""
    needs(9, 0, "the larger workspace of cuBLAS")
    names = ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE")
    found = {}
    for setting in ("", ":4096:8", ":1024:2"):
        changes = {names[0]: setting} if setting else {}
        env = environment(changes, names)
        found[setting] = int(child(WORKSPACE, env=env).splitlines()[-1])
    observe("workspace of cuBLAS", found[""])
    assert 32 * MIB <= found[":4096:8"] < 40 * MIB
    assert found[":1024:2"] < 8 * MIB
    assert found[""] == found[":4096:8"]
