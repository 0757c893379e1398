"""The project's own programs in a real image, with its torch and Python."""

from __future__ import annotations

import pytest

from tests.integration.support import ROOT, Built
from torch_images.build.job import Job
from torch_images.build.plan import plan_images
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.verify.suites import Subject, inside
from torch_images.verify.verify import claim


@pytest.mark.slow
def test_programs_work_in_the_default_image(
    built: Built, config: Config, workspace: Workspace, engine: Engine, runner: Runner
) -> None:
    """Whether or not there is a record of it. Without one, the build of `built` runs them, too."""
    [plan] = plan_images(config, [choose(config)], workspace.root, workspace.locks)
    info = engine.inspect(built.digest)
    expected = claim(config, plan)
    job = Job(config=config, workspace=workspace, engine=engine, run=runner)
    subject = Subject(job=job, info=info, claim=expected)
    names = sorted(path.stem for path in (ROOT / "tests/programs").glob("test_*.py"))
    checks = inside(subject, "programs", [f"{name}.py" for name in names]).checks
    assert [(c.name, c.message) for c in checks if c.outcome == "failed"] == []
    ran = {check.name.split("/")[1] for check in checks if check.outcome == "passed"}
    assert ran == set(names) - {"test_attention"}  # the image has no FlashAttention-4
