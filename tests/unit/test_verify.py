from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.unit.fakes import FakeEngine, FakeRunner, plan_of, stored, workspace_of
from torch_images.build import labels
from torch_images.build.job import BuildOptions, Job
from torch_images.build.plan import plan_images
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import EngineError, UsageError
from torch_images.host.cache import Part
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo
from torch_images.platforms import AMD64, ARM64, Platform
from torch_images.verify import compilers, ledger
from torch_images.verify.identify import identify
from torch_images.verify.ledger import Line
from torch_images.verify.suites import Check, Subject, SuiteResult, parse_junit, suite_hash
from torch_images.verify.verify import (
    VerifyReport,
    claim,
    verify,
    write_report,
)

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.image.test_files" name="test_owners" time="0.5"/>
<testcase classname="tests.image.test_metadata" name="test_label[a.b]" time="1">
  <failure message="assert 'x' ==&#10; 'y'">long</failure></testcase>
<testcase classname="container.test_arch" name="test_flags[12.0]" time="0">
  <properties><property name="arch 12.0" value="native sm_120"/></properties></testcase>
<testcase classname="container.test_gpu" name="test_g" time="0"><skipped message="no GPU"/></testcase>
<testcase classname="container.test_gpu" name="test_e" time="0"><error message="boom"/></testcase>
<testcase classname="container.test_gpu" name="test_l" time="0">
  <failure message="assert 1 [+2 more lines; full report in element text]">&gt;   assert done
E   assert 1
E     == 2
test.py:3: AssertionError</failure></testcase>
<testcase classname="" name="container.test_vllm" time="0"><skipped message="no vLLM"/></testcase>
</testsuite></testsuites>"""


def report(*checks: Check) -> VerifyReport:
    return VerifyReport(
        digest="sha256:d", id="i", suite="s", checks=checks, observed={}, seconds=1.0
    )


def test_parse_junit() -> None:
    """A message that pytest shortened comes whole, from the traceback.

    A module that is skipped as a whole has no class, and its own name.
    """
    parsed = parse_junit(JUNIT, "image")
    assert [(c.name, c.outcome, c.message) for c in parsed.checks] == [
        ("image/test_files/test_owners", "passed", ""),
        ("image/test_metadata/test_label[a.b]", "failed", "assert 'x' == 'y'"),
        ("image/test_arch/test_flags[12.0]", "passed", ""),
        ("image/test_gpu/test_g", "skipped", "no GPU"),
        ("image/test_gpu/test_e", "failed", "boom"),
        ("image/test_gpu/test_l", "failed", "assert 1 == 2"),
        ("image/test_vllm/container.test_vllm", "skipped", "no vLLM"),
    ]
    assert parsed.observed == {"arch 12.0": "native sm_120"}


def test_suite_hash_changes_with_claim_and_checks(config: Config, root: Path) -> None:
    hashes = {
        suite_hash(root, claim(config, image))
        for image in plan_images(
            config, [choose(config, arch=a) for a in ("9.0", "12.0")], root, root / "locks"
        )
    }
    assert len(hashes) == 2


CHECKS = (Check(name="a", outcome="passed", seconds=1.0),)


class CheckedError(EngineError):
    """The checks were run, and not an old report taken."""


class OneImage(Engine):
    """An engine that has one image and starts no container."""

    def __init__(self, info: ImageInfo, platform: Platform = AMD64) -> None:
        self.info_of_it, self.own = info, platform

    def inspect(self, image: str) -> ImageInfo:
        return self.info_of_it

    def platform(self) -> Platform:
        return self.own

    def local_root(self) -> None:
        return None

    def container(self, *_: object, **__: object) -> NoReturn:
        raise CheckedError("the image is looked at")


@pytest.fixture
def verified(config: Config, root: Path, tmp_path: Path) -> Callable[..., VerifyReport]:
    """Verify an image of which there is a report, which differs in what is given."""
    image = plan_of(config, root)
    info = ImageInfo(id="sha256:" + "d" * 64, size=1, created="", config={}, labels={})
    for folder in ("tests", "torch_images"):
        (tmp_path / folder).symlink_to(root / folder)
    workspace = workspace_of(tmp_path, tmp_path, locks=root / "locks")
    kept = VerifyReport(
        digest=info.id,
        id=image.spec.id,
        suite=suite_hash(tmp_path, claim(config, image)),
        checks=CHECKS,
        observed={"cuda": "13.0"},
        seconds=1.0,
    )

    def run(
        *, reuse: bool = True, fresh: bool = False, machine: Platform = AMD64, **changes: Any
    ) -> VerifyReport:
        write_report(replace(kept, **changes), workspace)
        job = Job(
            config=config,
            workspace=workspace,
            engine=OneImage(info, machine),
            run=FakeRunner(),
            options=BuildOptions(no_cache=fresh),
        )
        return verify(job, "x", image, reuse=reuse)

    return run


def test_verify_uses_a_report_of_the_same_checks(
    verified: Callable[..., VerifyReport],
) -> None:
    outcome = verified()
    assert outcome.passed
    assert outcome.observed == {"cuda": "13.0"}


@pytest.mark.parametrize(
    "changes",
    [
        {"suite": "0" * 64},  # of other checks, or of another claim
        {"checks": ()},
        {"checks": (Check(name="a", outcome="failed", seconds=1.0),)},
        {"reuse": False},
        {"fresh": True},
    ],
    ids=str,
)
def test_verify_ignores_a_report_of_other_checks(
    verified: Callable[..., VerifyReport], changes: dict[str, Any]
) -> None:
    with pytest.raises(CheckedError):
        verified(**changes)


def test_programs_run_until_they_pass(
    verified: Callable[..., VerifyReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the next image with the same torch and Python need not run them."""
    runs: list[bool] = []
    outcomes = ["failed", "passed", "failed"]

    def examine(_: Subject, *, programs: Sequence[str], **__: object) -> SuiteResult:
        runs.append("test_start.py" in programs)
        check = Check(name="programs/test_start/test_x", outcome=outcomes.pop(0), seconds=1.0)
        return SuiteResult(checks=(check,), observed={}, processor_seconds=1000.0)

    monkeypatch.setattr("torch_images.verify.verify.examine", examine)
    reports = [verified(reuse=False, fresh=fresh) for fresh in (False, True, True)]
    assert runs == [True, True, False]
    assert [report.passed for report in reports] == [False, True, False]
    assert 1000 <= reports[0].processor_seconds < 1100


def test_programs_that_passed_by_the_ledger_do_not_run(
    verified: Callable[..., VerifyReport], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs: list[int] = []

    def examine(_: Subject, *, programs: Sequence[str], **__: object) -> SuiteResult:
        outcomes = {name.removesuffix(".py"): "passed" for name in programs}
        if not runs:
            outcomes["test_start"] = "failed"
        runs.append(len(programs))
        checks = [Check(name=f"programs/{n}/x", outcome=o, seconds=1) for n, o in outcomes.items()]
        return SuiteResult(checks=(*checks, *CHECKS), observed={})

    monkeypatch.setattr("torch_images.verify.verify.examine", examine)
    reports = [verified(reuse=False) for _ in range(2)]
    assert reports[0].programs == ""
    ledger.write(tmp_path, [Line(image="x", date="2026-11-29", programs=reports[1].programs)])
    shutil.rmtree(tmp_path / Part.PROGRAMS)  # another machine
    reports.append(verified(reuse=False))
    assert runs == [max(runs), 1, 0]
    assert reports[2].programs == reports[1].programs != ""


@pytest.mark.parametrize("fresh", [False, True])
def test_no_cache_reads_all_files(
    verified: Callable[..., VerifyReport], monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    read: list[Sequence[str]] = []

    def examine(subject: Subject, **_: object) -> SuiteResult:
        read.append(subject.unchanged)
        return SuiteResult(checks=CHECKS, observed={})

    monkeypatch.setattr("torch_images.verify.verify.unchanged", lambda *_: ("torch-2.0.dist-info",))
    monkeypatch.setattr("torch_images.verify.verify.examine", examine)
    verified(reuse=False, fresh=fresh)
    assert read == [() if fresh else ("torch-2.0.dist-info",)]


def test_compilers_run_in_an_emulator_until_all_passes(
    verified: Callable[..., VerifyReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the image's own processor, and without a cache, they always run.

    One that fails then runs again: its older record goes.
    """
    outcomes = ["passed", "failed", "passed", "passed", "passed", "failed", "passed"]
    known: list[Sequence[str]] = []

    def examine(subject: Subject, **_: object) -> SuiteResult:
        known.append(subject.known)
        check = Check(name="container/x", outcome=outcomes.pop(0), seconds=1.0)
        return SuiteResult(checks=(check,), observed={})

    monkeypatch.setattr("torch_images.verify.verify.examine", examine)
    reports = [
        verified(reuse=False, machine=machine) for machine in (AMD64, ARM64, ARM64, ARM64, AMD64)
    ]
    for fresh in (True, False):
        verified(reuse=False, machine=ARM64, fresh=fresh)
    assert known == [(), (), (), compilers.CHECKS, (), (), ()]
    assert [report.skipped for report in reports[:3]] == [(), (), ()]
    skipped = reports[3].skipped
    assert "container/test_compile/test_compiled_function_equals_eager" in {c.name for c in skipped}
    assert {c.message for c in skipped} == {
        f"no failure with the same packages in sha256:{'d' * 64}"
    }


def test_compilers_record_depends_on_packages_and_checks(
    config: Config, root: Path, tmp_path: Path
) -> None:
    """Not on programs that prepare an environment: an edit took half an hour in an emulator."""
    for folder in ("docker", "scripts", "tests"):
        shutil.copytree(root / folder, tmp_path / folder)
    workspace = workspace_of(tmp_path, tmp_path / "cache", locks=root / "locks")

    def record(**axes: str) -> Path:
        [plan] = plan_images(config, [choose(config, **axes)], tmp_path, root / "locks")
        return compilers.record(plan, workspace)

    first = record()
    assert first != record(variant="devel")
    for name in ("runtime/start.py", "commands/torch-entrypoint"):
        with (tmp_path / "scripts/image" / name).open("a") as file:
            file.write("\n# a line\n")
        assert record() == first
    builder = "scripts/image/runtime/_torch_images/builder.py"  # options of nvcc
    for name in ("scripts/image/build/create-venv", "tests/container/test_compile.py", builder):
        with (tmp_path / name).open("a") as file:
            file.write("\n# a line\n")
        assert record() != first
        first = record()


def test_compilers_checks_exist(root: Path) -> None:
    """No error of pytest would show that one is gone."""
    for check in compilers.CHECKS:
        module, _, function = check.partition("::")
        text = (root / "tests/container" / module).read_text()
        assert re.findall(rf"def ({function}\w*)\(", text) == [function]  # pytest takes a prefix


def test_suite_hash_changes_with_a_check(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file counts that is run against an image: by its name and its content."""
    monkeypatch.setattr("torch_images.verify.suites.PACKAGE", tmp_path / "torch_images")
    for folder in (
        "tests/image", "tests/container", "tests/programs", "scripts/bench", "torch_images"
    ):  # fmt: skip
        shutil.copytree(
            root / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    hashes = [suite_hash(tmp_path, {})]
    for name in (
        "tests/image/test_files.py",
        "tests/container/test_arch.py",
        "tests/container/pytest.ini",
        "tests/programs/test_precision.py",
        "scripts/bench/cases.py",
        "torch_images/arch.py",
    ):
        with (tmp_path / name).open("a") as file:
            file.write("\n")
        hashes.append(suite_hash(tmp_path, {}))
    (tmp_path / "tests/image/test_files.py").rename(tmp_path / "tests/image/test_other.py")
    hashes.append(suite_hash(tmp_path, {}))
    assert len(set(hashes)) == len(hashes)
    (tmp_path / "tests/image/__pycache__").mkdir()
    (tmp_path / "tests/image/__pycache__/x.pyc").touch()
    assert suite_hash(tmp_path, {}) == hashes[-1]


def test_identify_ignores_a_candidate_with_a_longer_name(config: Config, root: Path) -> None:
    """With the compat library, or for another platform."""
    plain = choose(config, platform="linux/amd64")
    compat = choose(config, platform="linux/amd64", compat="with")

    class Both(FakeEngine):
        def inspect(self, image: str) -> ImageInfo:
            [one] = [one for one in self.images if image in one.tags]
            return ImageInfo(id=one.id, size=1, labels=one.labels, config={}, created="")

    engine = Both(
        stored("a", "torch-cu130:latest", **{labels.ID: plain.id}),
        stored("b", f"torch-images-candidate:{compat.id}", **{labels.ID: compat.id}),
    )
    workspace = workspace_of(root, root / "none")
    names = [identify(config, spec.id, workspace, engine)[0] for spec in (plain, compat)]
    assert names == ["torch-cu130:latest", f"torch-images-candidate:{compat.id}"]


def test_identify_an_image_that_is_not_built(config: Config, root: Path) -> None:
    image, words = "torch-cu130:sm90", "--cuda 13.0 --arch 9.0 --torch 2.14.1"
    workspace = workspace_of(root, root / "none")
    with pytest.raises(UsageError) as caught:
        identify(config, image, workspace, FakeEngine(stored("a", "mine:pod")))
    assert str(caught.value).startswith(
        f"{image} is not built; build it first: `invoke build {words}"
    )
