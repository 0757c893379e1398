"""The entrypoint says which libcuda it chose; and what shells read that it did not start.

tests/container/test_start.py has what torch takes from it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from testinfra.host import Host

# What torch.compile may choose from for matrix products, where that is not torch's own default.
PRINT_GEMM = """
import os
import torch
if "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS" in os.environ:
    from torch._inductor import config
    assert not config.max_autotune and not config.max_autotune_gemm
    print(config.max_autotune_gemm_backends.upper().replace(",", " "))
"""


@pytest.mark.parametrize("asked", ["", "cutlass"])
def test_cutlass_competes_where_the_image_has_it(
    host: Host, expected: dict[str, Any], asked: str
) -> None:
    """TORCH_IMAGE_GEMM=cutlass adds CUTLASS to torch's default, and max-autotune stays off.

    An image without CUTLASS or nvcc says that it cannot.
    """
    able = "nvidia-cutlass" in expected["unpacked"] and bool(expected["cuda_home"])
    program = PRINT_GEMM if able else ""  # importing torch takes seconds
    done = host.run(f"TORCH_IMAGE_GEMM={asked} torch-entrypoint python -c %s", program)
    assert done.rc == 0, done.stderr
    competing = {"ATEN", "TRITON", "CPP", "CUTLASS"} if able and asked else set()
    assert set(done.stdout.split()) == competing
    assert ("TORCH_IMAGE_GEMM=cutlass has no effect" in done.stderr) == (asked != "" and not able)


def test_start_says_what_it_chose(host: Host) -> None:
    done = host.run("torch-entrypoint true")
    assert done.rc == 0
    assert done.stdout == ""
    assert done.stderr.startswith(("torch-images: CUDA ", "torch-images: No GPU "))
    assert done.stderr.count("\n") == 1


def test_doctor_agrees_with_the_start(host: Host) -> None:
    line = host.run("torch-entrypoint true").stderr.removeprefix("torch-images: ").strip()
    assert json.loads(host.run("cuda-doctor --json").stdout)["summary"] == line


def test_bashs_own_file_has_one_more_line(host: Host) -> None:
    """The rest is Debian's, so an update of bash has nothing to ask about."""
    lines = host.check_output("head -n 1 /etc/bash.bashrc")
    assert lines == ". /usr/local/lib/torch-images/shell.sh # by torch-images"
    told = host.check_output("dpkg-query -W -f='${Conffiles}' bash").split()
    rest = host.check_output("tail -n +2 /etc/bash.bashrc | md5sum").split()[0]
    assert rest == told[told.index("/etc/bash.bashrc") + 1]


def test_nothing_is_in_the_environment_for_the_shells_sake(host: Host) -> None:
    """Programs read ENV as "dev" or "prod". Only bash reads BASH_ENV."""
    names = host.check_output("python -c 'import os; print(*os.environ)'").split()
    assert not {"ENV", "PROMPT_COMMAND"} & set(names)
