"""The variant with CUDA's toolkit: verified like every image, and little beside the plain one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.support import Built, invoke, quiet
from torch_images.engine import Engine
from torch_images.verify import read_report, report_path
from torch_images.workplace import Workplace

BUILD = ("build", "--cuda", "13.0", "--arch", "9.0,12.0", "--variant", "devel")
PLAIN = 6  # layers that follow from the base and the plain wheels: base, venv, four of wheels


@pytest.fixture(scope="module")
def devel(built: dict[str, Built], engine: Engine) -> Iterator[dict[str, Any]]:
    """What the build says of itself."""
    done = invoke(*BUILD, "--progress", "plain", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    [image] = json.loads(done.stdout)
    yield image
    for tag in image["tags"]:
        engine.untag(tag)


def test_its_name_says_what_it_is(devel: dict[str, Any]) -> None:
    exact, short = devel["tags"]
    assert exact.startswith("torch-cu130:2.11.0-sm90_sm120-devel-")
    assert short == "torch-cu130:sm90_sm120-devel"


def test_the_toolkit_was_checked(devel: dict[str, Any], place: Workplace) -> None:
    report = read_report(report_path(place, devel["digest"]))
    assert report is not None
    passed = {check.name for check in report.checks if check.outcome == "passed"}
    assert passed >= {
        "container/test_toolkit/test_an_extension_of_torch_is_compiled",
        "container/test_toolkit/test_cmake_finds_every_part",
        "container/test_toolkit/test_nvcc_compiles_links_and_runs",
        "container/test_toolkit/test_nvcc_is_of_the_cuda_version",
        "image/test_toolkit/test_links_lead_somewhere",
    }


def test_layers_of_the_plain_image_are_shared(
    devel: dict[str, Any], built: dict[str, Built], engine: Engine
) -> None:
    ours, plain = (engine.inspect(x).layers for x in (devel["digest"], built["cu130"].digest))
    assert ours[:PLAIN] == plain[:PLAIN]


def test_it_compiles_as_any_user(devel: dict[str, Any], engine: Engine) -> None:
    code = "echo 'int main() { return 7; }' >/tmp/x.cu && nvcc -o /tmp/x /tmp/x.cu && /tmp/x"
    options = quiet(user="1000:1000", tmpfs={"/tmp": "exec"})
    assert engine.run(devel["digest"], "sh", "-c", code, **options).code == 7
