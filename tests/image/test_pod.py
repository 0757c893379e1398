"""The variant for pods: it has what pod-start needs, and no keys from the build."""

from __future__ import annotations

from typing import Any

import pytest
from testinfra.host import Host

Facts = dict[str, Any]


@pytest.fixture(autouse=True)
def pod(expected: Facts) -> None:
    """Skip images whose default command is not pod-start."""
    if expected["command"] != ["pod-start"]:
        pytest.skip("the image is not one for pods")


def test_no_key_is_in_the_image(host: Host) -> None:
    assert host.check_output("ls /etc/ssh/ssh_host_* /root/.ssh 2>/dev/null || true") == ""


def test_sshd_takes_keys_only(host: Host) -> None:
    """`sshd -T` prints the settings in force. It needs a host key for that."""
    look = "mkdir -p /run/sshd && ssh-keygen -q -t ed25519 -N '' -f /tmp/k && sshd -T -h /tmp/k"
    found = host.check_output(f"{look}; rm -f /tmp/k /tmp/k.pub; rmdir /run/sshd").splitlines()
    settings = dict(line.split(" ", 1) for line in found if " " in line)
    wanted = {
        "passwordauthentication": "no",
        "kbdinteractiveauthentication": "no",
        "permitemptypasswords": "no",
        "permitrootlogin": "without-password",
        "pubkeyauthentication": "yes",
        "usepam": "no",
    }
    assert {name: settings[name] for name in wanted} == wanted


def test_login_shows_what_there_is(host: Host, expected: Facts) -> None:
    """cuda-doctor, shown at login, names torch, nvcc, CUTLASS, the compat library and the GPUs."""
    found = host.run("cuda-doctor").stdout
    cutlass = expected["unpacked"]["nvidia-cutlass"]["version"]
    line = next(x for x in found.splitlines() if x.startswith("software"))
    for part in (f"torch {expected['torch'].partition('+')[0]}", f"CUTLASS {cutlass}"):
        assert part in line
    assert ("nvcc in" in line) is bool(expected["cuda_home"])
    assert "\ncompat " in found
    assert "\nGPUs " in found


@pytest.mark.parametrize("program", ["curl", "jupyter", "nano", "rsync", "sftp", "tmux"])
def test_programs_are_there(host: Host, program: str) -> None:
    assert host.exists(program)
