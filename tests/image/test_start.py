"""The entrypoint: PyTorch uses the settings that it makes, and it says which libcuda it chose.

And what shells read that it did not start.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from packaging.version import Version
from testinfra.host import Host

# What torch takes from the start's variables, also without a GPU.
PRINT_SETTINGS = """
import json, torch
matmul = torch.backends.cuda.matmul
print(json.dumps({
    "precision": torch.get_float32_matmul_precision(),
    "allowed": matmul.allow_tf32,
    "matmul": getattr(matmul, "fp32_precision", None),
    "convolutions": torch.backends.cudnn.allow_tf32,
    "expandable": torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"],
}))
"""
# What torch.compile may choose from for matrix products, where that is not torch's own default.
PRINT_GEMM = """
import os
if "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS" in os.environ:
    from torch._inductor import config
    assert not config.max_autotune and not config.max_autotune_gemm
    print(config.max_autotune_gemm_backends.upper().replace(",", " "))
"""


@pytest.mark.parametrize("profile", ["on", "off"])
def test_profile_is_in_force(host: Host, expected: dict[str, Any], profile: str) -> None:
    """Importing torch makes what the profile says. Where processes here cannot share memory of
    expandable segments, it leaves those out, and cuda-doctor says so.
    """
    settings = f"TORCH_IMAGE_QUIET=1 TORCH_IMAGE_PROFILE={profile}"
    found = json.loads(
        host.check_output(f"{settings} torch-entrypoint python -c %s", PRINT_SETTINGS)
    )
    on = profile == "on"
    assert found["precision"] == ("high" if on else "highest")
    assert found["allowed"] is on
    if found["matmul"] is not None:  # torch has this word for it from 2.9 on
        assert (found["matmul"] == "tf32") is on
    assert found["convolutions"]  # torch's own default
    # Before 2.9, torch reads an older name of the allocator's setting.
    knows = Version(expected["torch"]) >= Version("2.9.0a0")
    doctor = json.loads(host.run("cuda-doctor --json").stdout)
    assert found["expandable"] is (on and knows and not doctor["cannot_share"])


@pytest.mark.parametrize("asked", ["", "cutlass"])
def test_cutlass_competes_where_the_image_has_it(
    host: Host, expected: dict[str, Any], asked: str
) -> None:
    """TORCH_IMAGE_GEMM=cutlass adds CUTLASS to torch's default, and max-autotune stays off.

    An image without CUTLASS or nvcc says that it cannot.
    """
    able = "nvidia-cutlass" in expected["unpacked"] and bool(expected["cuda_home"])
    done = host.run(f"TORCH_IMAGE_GEMM={asked} torch-entrypoint python -c %s", PRINT_GEMM)
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


def test_any_bash_of_sshd_finds_the_environment(host: Host) -> None:
    """A platform's sshd starts `bash -c python` with its own environment, and no login shell.

    bash takes itself for a child of sshd by SSH_CLIENT, and then reads /etc/bash.bashrc.
    """
    show = (
        "import json, os, sys, torch; names = ('PIP_CONSTRAINT', 'TORCH_IMAGE_TF32');"
        "print(json.dumps([sys.prefix, *(os.environ[n] for n in names)]))"
    )
    sshd = "env -i HOME=/root PATH=/usr/bin:/bin SSH_CLIENT=1 bash -c"
    done = host.run(f"{sshd} %s", f"python -c {shlex.quote(show)}")
    # torch's oneDNN says so in an emulator of an Arm processor, which lacks that register.
    said = [line for line in done.stderr.splitlines() if "MIDR_EL1" not in line]
    assert (done.rc, said) == (0, [])
    assert json.loads(done.stdout) == [
        "/opt/venv", "/usr/share/torch-images/constraints.txt", "1",
    ]  # fmt: skip


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
