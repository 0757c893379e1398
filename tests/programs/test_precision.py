"""TF32 by default takes no setter of torch away: each has the effect that it has in stock torch.

The danger is wrong numbers in silence: torch.backends.fp32_precision = "ieee" that leaves products
on TF32, or a getter that raises. So sequences of setters run in two processes, one as the profile
makes it and one without, and every getter is compared after each setter. Setters and getters that
a release does not have fail alike in both.
"""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.container.processes import child, environment

SETTINGS = ("TORCH_IMAGE_TF32", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE")
PRECISIONS = ("none", "ieee", "tf32", "bf16", "no such")
# Setters, and whether they choose the precision of CUDA's products.
NODES = {
    "torch.backends": True,
    "torch.backends.cuda.matmul": True,
    "torch.backends.cudnn": True,  # all of CUDA's operators inherit it
    "torch.backends.cudnn.conv": False,
    "torch.backends.cudnn.rnn": False,
    "torch.backends.mkldnn": False,  # torch 2.11 has it set what all backends inherit
    "torch.backends.mkldnn.matmul": False,
    "torch.backends.mkldnn.conv": False,
    "torch.backends.mkldnn.rnn": False,
}
SETTERS = {
    **{
        f"{node}.fp32_precision = '{value}'": chooses
        for node, chooses in NODES.items()
        for value in PRECISIONS
    },
    **{
        f"torch.set_float32_matmul_precision('{value}')": True
        for value in ("highest", "high", "medium", "HIGH", "no such")
    },
    **{f"torch.backends.cuda.matmul.allow_tf32 = {value}": True for value in (True, False, 7)},
    **{f"torch.backends.cudnn.allow_tf32 = {value}": False for value in (True, False)},
    "with torch.backends.cudnn.flags(enabled=True): pass": False,
    "with torch.backends.cudnn.flags(enabled=True, allow_tf32=False): look()": False,
    "with torch.backends.cudnn.flags(enabled=True, fp32_precision='ieee'): look()": True,
    "with torch.backends.mkldnn.flags(enabled=True): pass": False,
    "with torch.backends.flags(fp32_precision='ieee'): look()": True,
}
# What torch's own tests do: "none" in stock torch, and "tf32" where TF32 is the default.
TF32 = "torch.backends.cuda.matmul.fp32_precision = 'tf32'"
SAVED = """
before = torch.backends.cuda.matmul.fp32_precision
torch.backends.cuda.matmul.fp32_precision = 'ieee'
torch.backends.cuda.matmul.fp32_precision = before
"""
SETTERS[SAVED] = False
# Where the older getters of stock torch raise after TF32, the image has its default once more.
STOCK = f"""
{TF32}
try:
    torch._C._get_cublas_allow_tf32()
except RuntimeError:
    default = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.fp32_precision = 'none'
"""
INSTEAD = {
    TF32: STOCK,
    SAVED: f"{SAVED}\nif before == 'tf32':\n    exec({STOCK!r})\n",
}
# Dynamo puts back the precision that it found.
COMPILE = "torch.compile(torch.abs, backend='eager')(torch.ones(1))"
GETTERS = (
    *(f"{node}.fp32_precision" for node in NODES),
    "torch.get_float32_matmul_precision()",
    "torch.backends.cuda.matmul.allow_tf32",
    "torch.backends.cudnn.allow_tf32",
    "torch._C._get_cublas_allow_tf32()",
)
# The getters that TF32 by default changes, and what they then say.
DEFAULT = {
    "torch.backends.cuda.matmul.fp32_precision": "tf32",
    "torch.get_float32_matmul_precision()": "high",
    "torch.backends.cuda.matmul.allow_tf32": True,
    "torch._C._get_cublas_allow_tf32()": True,
}
# A fork keeps the state of a new process, in which each sequence begins.
PROGRAM = """
import json, os, sys, warnings
import torch, torch._dynamo
warnings.simplefilter("ignore")
sequences, getters = json.load(open(sys.argv[1]))
def look():
    found = {}
    for getter in getters:
        try:
            found[getter] = eval(getter)
        except Exception as error:
            found[getter] = type(error).__name__
    looks.append(found)
for sequence in sequences:
    if (process := os.fork()) == 0:
        steps = []
        for setter in ["pass", *sequence]:
            looks, problem, default = [], "", False
            try:
                exec(setter)
            except Exception as error:
                problem = type(error).__name__
            look()
            steps.append([problem, looks, default])
        print(json.dumps(steps), flush=True)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
"""


def sequences() -> list[list[str]]:
    """Every setter by itself, some after torch.compile, and random ones.

    A sequence costs two forks of a process with torch, each some 30 ms.
    """
    made = random.Random(48)  # noqa: S311  the same ones in every run
    return [
        *([name] for name in SETTERS),
        *(["torch.set_float32_matmul_precision('medium')", name] for name in (TF32, SAVED)),
        *([COMPILE, name] for name in ("pass", "torch.backends.fp32_precision = 'ieee'")),
        *(made.choices(list(SETTERS), k=made.randint(2, 6)) for _ in range(80)),
    ]


def steps(folder: Path, asked: list[list[str]], mode: str) -> list[list[Any]]:
    """For each sequence, what a process with a value of the profile's setting goes through."""
    path = folder / f"{mode}.json"
    path.write_text(json.dumps([asked, GETTERS]))
    env = environment({SETTINGS[0]: mode}, SETTINGS)
    return [json.loads(line) for line in child(PROGRAM, str(path), env=env).splitlines()]


@pytest.mark.native("it starts hundreds of processes")
def test_each_setter_has_the_effect_that_it_has_in_stock_torch(tmp_path: Path) -> None:
    """From the first setter on that chooses the precision of CUDA's products, all of the state is
    as in stock torch. Before, and where a program puts the default back, only what the getters of
    DEFAULT say differs.
    """
    pytest.importorskip("_torch_images.after_torch", reason="no image's torch")
    if not hasattr(torch._C, "_set_fp32_precision_setter"):
        pytest.skip("before torch 2.9, one older setting is all the state, and each setter sets it")
    asked = sequences()
    instead = [[INSTEAD.get(setter, setter) for setter in sequence] for sequence in asked]
    with ThreadPoolExecutor() as pool:
        stock, ours = pool.map(steps, (tmp_path, tmp_path), (instead, asked), ("0", "1"))
    choosing = {name for name, chooses in SETTERS.items() if chooses}
    [_, last] = stock[asked.index(["torch.backends.mkldnn.fp32_precision = 'ieee'"])]
    if last[1][-1]["torch.backends.fp32_precision"] == "ieee":
        choosing |= {name for name in SETTERS if "torch.backends.mkldnn.fp32_precision" in name}
    for sequence, wanted, found in zip(asked, stock, ours, strict=True):
        chosen = False
        for setter, (problem, looks, again), step in zip(
            ["pass", *sequence], wanted, found, strict=True
        ):
            # A context that fails before it begins has chosen nothing.
            begun = len(looks) > 1 or not setter.startswith("with ")
            chosen = not again and (chosen or (setter in choosing and begun))
            shown = looks if chosen else [by_default(look) for look in looks]
            assert step == [problem, shown, False], (sequence, setter)


def by_default(stock: dict[str, object]) -> dict[str, object]:
    """What the getters say while TF32 is the default, by what they say in stock torch.

    Stock torch's older getter raises where the CPU's products have another precision than CUDA's.
    """
    changed = dict(DEFAULT)
    if stock["torch.backends.mkldnn.matmul.fp32_precision"] == "bf16":
        changed["torch.get_float32_matmul_precision()"] = "RuntimeError"
    return {**stock, **changed}
