"""Any user id, and read-only root file systems: what compiles and what is cached has a place."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.support import Built, facts, running
from torch_images.host.engine import Engine

# torch.compile with the C++ compiler, and a file in Triton's cache; where they were, as JSON.
COMPILES = """
import getpass, json, os, torch
from triton.runtime.cache import get_cache_manager
torch._inductor.config.cpp_cache_precompile_headers = False  # for many kernels; here is one
found = torch.compile(lambda x: x.sin() + 1)(torch.ones(3))
torch.testing.assert_close(found, torch.ones(3).sin() + 1)
put = get_cache_manager("a" * 64).put(b"x", "cached.bin")
print(json.dumps({
    "name": getpass.getuser(), "home": os.environ["HOME"], "triton": put,
    "inductor": os.environ["TORCHINDUCTOR_CACHE_DIR"],
}))
"""
HOME = "/tmp/torch-images-12345"


@pytest.fixture(scope="module")
def image(built: Built) -> str:
    return built.digest


@pytest.fixture(scope="module")
def nameless(image: str) -> Iterator[str]:
    """A container of an id that /etc/passwd does not know."""
    words = ("sh", "-c", "echo ready; exec sleep infinity")
    with running(image, *words, options=("--user=12345",)) as name:
        yield name


def compiled_places(text: str) -> dict[str, Any]:
    """What COMPILES printed; shown as it is where it failed."""
    assert text.strip().endswith("}"), text[-3000:]
    places: dict[str, Any] = json.loads(text.splitlines()[-1])
    return places


def check(places: dict[str, Any]) -> None:
    triton = places.pop("triton")
    assert places == {
        "name": "user12345",
        "home": HOME,
        "inductor": "/tmp/torchinductor_user12345",
    }
    assert triton.startswith(f"{HOME}/.triton/cache/")


@pytest.mark.parametrize(
    "words", [("python", "-c"), ("torch-entrypoint", "python", "-c")], ids=["exec", "start"]
)
def test_torch_compiles_for_an_id_without_a_name(nameless: str, words: tuple[str, ...]) -> None:
    """By `docker exec`, which starts nothing of ours, and by the start."""
    command = ["docker", "exec", nameless, *words, COMPILES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check(compiled_places(done.stdout))


def test_home_without_write_access_is_in_tmp(image: str, engine: Engine) -> None:
    """Debian's daemon has /usr/sbin; GitHub mounts /github/home, of another user."""
    code = "import os; open(os.environ['HOME'] + '/x', 'w'); print(os.environ['HOME'])"
    done = engine.run(image, "python", "-c", code, user="daemon", **facts())
    home = "/tmp/torch-images-1"
    line = f"torch-images: HOME=/usr/sbin cannot be written, so it is {home}"
    assert done.output.splitlines()[1:] == [line, home]
    done = engine.run(image, "-c", code, entrypoint=["python"], user="daemon", **facts())
    assert done.output == f"{home}\n"


def test_compile_read_only_without_a_home_or_the_entrypoint(image: str, engine: Engine) -> None:
    done = engine.run(
        image,
        "-c",
        COMPILES,
        entrypoint=["python"],
        **facts(user="12345", read_only=True, tmpfs={"/tmp": "exec"}, environment={"HOME": ""}),
    )
    check(compiled_places(done.output))


NOEXEC = (
    "torch-images: torch.compile cannot load what it compiles: /tmp is mounted noexec; "
    "start the container with --tmpfs /tmp:exec"
)
CLOSED = (
    "torch-images: torch.compile cannot work: /tmp cannot be written; "
    "start the container with --tmpfs /tmp:exec"
)


@pytest.mark.parametrize(
    ("mounts", "lines"),
    [({"/tmp": ""}, [NOEXEC]), ({}, [CLOSED]), ({"/tmp": "exec"}, [])],
    ids=["noexec", "read-only", "exec"],
)
def test_complaint_about_mount_options(
    image: str, engine: Engine, mounts: dict[str, str], lines: list[str]
) -> None:
    options = facts(read_only=True, tmpfs=mounts)
    assert engine.run(image, "true", **options).output.splitlines()[1:] == lines
    done = engine.run(image, "cuda-doctor", "--json", entrypoint=["/usr/bin/env"], **options)
    assert [f"torch-images: {json.loads(done.output)['user']['complaint']}"] == (
        lines or ["torch-images: "]
    )
