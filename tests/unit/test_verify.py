from __future__ import annotations

from pathlib import Path

import pytest

from tests.decisions import NOTES
from torch_images.config import Config
from torch_images.errors import VerifyError
from torch_images.matrix import choose
from torch_images.network import Network
from torch_images.planned import plan
from torch_images.verify import (
    Check,
    VerifyReport,
    claim,
    parse_junit,
    read_report,
    report_path,
    require,
    suite_hash,
)
from torch_images.workplace import Workplace

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.image.test_files" name="test_owners[docker://0a1b2c]" time="0.5"/>
<testcase classname="tests.image.test_metadata" name="test_label[a.b-docker://0a1b2c]" time="1">
  <failure message="assert 'x' ==&#10; 'y'">long</failure></testcase>
<testcase classname="container.test_arch" name="test_flags[12.0]" time="0">
  <properties><property name="arch 12.0" value="native sm_120"/></properties></testcase>
<testcase classname="container.test_gpu" name="test_g" time="0"><skipped message="no GPU"/></testcase>
<testcase classname="container.test_gpu" name="test_e" time="0"><error message="boom"/></testcase>
</testsuite></testsuites>"""


def report(*checks: Check) -> VerifyReport:
    return VerifyReport(
        digest="sha256:d", id="i", suite="s", checks=checks, observed={}, seconds=1.0
    )


def test_junit_becomes_checks() -> None:
    checks, observed = parse_junit(JUNIT, "image")
    assert [(c.name, c.outcome, c.message) for c in checks] == [
        ("image/test_files/test_owners", "passed", ""),
        ("image/test_metadata/test_label[a.b]", "failed", "assert 'x' == 'y'"),
        ("image/test_arch/test_flags[12.0]", "passed", ""),
        ("image/test_gpu/test_g", "skipped", "no GPU"),
        ("image/test_gpu/test_e", "failed", "boom"),
    ]
    assert observed == {"arch 12.0": "native sm_120"}


def test_a_failure_is_named() -> None:
    failed = Check(name="image/test_files/test_x", outcome="failed", seconds=0, message="why")
    with pytest.raises(VerifyError, match=r"i failed verification: image/test_files/test_x: why;"):
        require(report(failed))


def test_no_checks_are_no_pass() -> None:
    assert not report().passed
    with pytest.raises(VerifyError, match="no check ran"):
        require(report())


def test_a_report_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    place = Workplace(root=tmp_path, cache=tmp_path, network=Network(), locks=tmp_path)
    path = report_path(place, "sha256:d")
    assert read_report(path) is None
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert read_report(path) is None


def test_the_suite_hash_changes_with_claim_and_checks(config: Config, root: Path) -> None:
    hashes = {
        suite_hash(root, claim(config, image, note))
        for image in plan(
            config, [choose(config, arch=a) for a in ("9.0", "12.0")], root, root / "locks"
        )
        for note in ("", NOTES["13.0"])
    }
    assert len(hashes) == 4
