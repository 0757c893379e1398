"""A tag needs a pass, of this very image, by the checks of this checkout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.conftest import T130
from tests.unit.fakes import FakeEngine, FakeRunner, plan_of, stored, workspace_of
from torch_images.build import built, labels
from torch_images.build.job import Job, Shown
from torch_images.build.plan import ImagePlan, version
from torch_images.config.types import Config
from torch_images.errors import VerifyError
from torch_images.host.image_info import ImageInfo
from torch_images.publish.tag import tag
from torch_images.verify import identify
from torch_images.verify.suites import Check, suite_hash
from torch_images.verify.verify import VerifyReport, claim, write_report

DIGEST = f"sha256:{'a' * 64}"


class Engine(FakeEngine):
    """An engine with one image."""

    def __init__(self, config: Config, plan: ImagePlan) -> None:
        super().__init__(stored("a", plan.candidate))
        image_labels = labels.write(config, plan)
        self.image = ImageInfo(id=DIGEST, size=1, labels=image_labels, config={}, created="")

    def inspect(self, image: str) -> ImageInfo:
        return self.image


@pytest.fixture
def plan(config: Config, root: Path) -> ImagePlan:
    return plan_of(config, root, arch="12.0")


@pytest.fixture
def engine(config: Config, plan: ImagePlan) -> Engine:
    return Engine(config, plan)


@pytest.fixture
def report(config: Config, root: Path, plan: ImagePlan, engine: Engine) -> VerifyReport:
    """A pass by the checks of this checkout."""
    return VerifyReport(
        digest=DIGEST,
        id=plan.spec.id,
        suite=suite_hash(root, claim(config, plan)),
        checks=(Check(name="image/test_x/test_y", outcome="passed", seconds=0),),
        observed={},
        seconds=0,
    )


FAILED = {"checks": (Check(name="image/test_x/test_y", outcome="failed", seconds=0),)}


@pytest.fixture
def job(config: Config, root: Path, tmp_path: Path, engine: Engine) -> Callable[..., Job]:
    """A job whose lines go to a function."""
    space = workspace_of(root, tmp_path)

    def make(say: Callable[[str], None] = print) -> Job:
        shown = Shown(say=say)
        return Job(config=config, workspace=space, engine=engine, run=FakeRunner(), shown=shown)

    return make


def test_tag_after_a_pass_drops_the_candidate(
    job: Callable[..., Job], config: Config, plan: ImagePlan, engine: Engine, report: VerifyReport
) -> None:
    names = tag(job(), plan, report)
    assert set(engine.tags()) == set(names)
    assert plan.candidate not in names
    exact = version(config, plan)
    assert names == tuple(f"torch-cu130:{t}" for t in (exact, f"{T130}-sm120", "sm120"))


@pytest.mark.parametrize("more", [(), ("mine:1",)])
def test_tag_leaves_a_name_to_an_image_of_the_users(
    job: Callable[..., Job],
    plan: ImagePlan,
    engine: Engine,
    report: VerifyReport,
    more: tuple[str, ...],
) -> None:
    """It lost its name to the build, and with it itself."""
    theirs, lines = stored("b", "torch-cu130:sm120", *more), list[str]()
    engine.images.append(theirs)
    tag(job(lines.append), plan, report)
    [kept] = [image for image in engine.images if image.id == theirs.id]
    [name] = kept.tags
    assert name == (more or ("torch-cu130:sm120-bbbbbbbbbbbb",))[0]
    assert lines == [f"torch-cu130:sm120 was an image that was not built here: it is {name} now"]


@pytest.mark.parametrize(("torch", "says"), [("2.99.0", True), ("2.1.0", False), ("", False)])
def test_tag_says_that_it_goes_back_to_an_older_torch(
    job: Callable[..., Job],
    plan: ImagePlan,
    engine: Engine,
    report: VerifyReport,
    torch: str,
    says: bool,
) -> None:
    names = ("torch-cu130:sm120", "torch-cu130:2.99.0-sm120")
    ours, lines = stored("b", *names, **{"io.github.torch-images.torch": torch}), list[str]()
    engine.images.append(ours)
    built.note(job().workspace.cache, engine, ours.id)
    tag(job(lines.append), plan, report)
    line = f"torch-cu130:sm120 goes back from torch {torch}, {names[1]}, to {T130}"
    assert lines == ([line] if says else [])


@pytest.mark.parametrize("change", [FAILED, {"digest": f"sha256:{'b' * 64}"}])
def test_tag_refuses_without_a_pass_of_the_digest(
    job: Callable[..., Job],
    plan: ImagePlan,
    engine: Engine,
    report: VerifyReport,
    change: dict[str, object],
) -> None:
    with pytest.raises(VerifyError):
        tag(job(), plan, replace(report, **change))  # type: ignore[arg-type]
    assert engine.tags() == (plan.candidate,)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, ""),
        (None, "never verified"),
        (FAILED, "failed"),
        ({"suite": "another"}, "other checks"),
    ],
)
def test_tag_and_push_need_a_pass_by_the_checks_of_this_checkout(
    config: Config,
    root: Path,
    tmp_path: Path,
    plan: ImagePlan,
    engine: Engine,
    report: VerifyReport,
    change: dict[str, object] | None,
    word: str,
) -> None:
    workspace = workspace_of(root, tmp_path, made=tmp_path)
    if change is not None:
        write_report(replace(report, **change), workspace)  # type: ignore[arg-type]
    if not word:
        verified = identify.verified_image(config, plan.candidate, workspace, engine)
        assert verified.report.digest == DIGEST
        return
    with pytest.raises(VerifyError, match=word):
        identify.verified_image(config, plan.candidate, workspace, engine)
