"""FlashAttention-4 behind the torch of a real image, without a GPU and without FlashAttention-4.

`verify` runs tests/programs/test_attention.py in an image that has both. This runs it in the image
that the tests build anyway, so that each change is checked against a real torch.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.integration.support import ROOT, Built
from torch_images.fetch.tools import install_tools
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace

SOURCE = ROOT / "scripts" / "image" / "attention"
CHECKS = ("container/pytest.ini", "container/conftest.py", "programs/test_attention.py")


def test_torchs_operators_lead_to_it(
    built: Built, engine: Engine, workspace: Workspace, tmp_path: Path
) -> None:
    """The folder is as install-attention makes it; PYTHONPATH stands in for its .pth file."""
    (tmp_path / "checks").mkdir()
    shutil.copytree(SOURCE, tmp_path / "torch_image_attention")
    for name in CHECKS:
        shutil.copy(ROOT / "tests" / name, tmp_path / "checks")
    tools = install_tools("tools-verify", workspace, Runner())
    folders = {str(tmp_path): "/plug", str(tools): "/tools"}
    done = engine.run(
        built.digest,
        *("python", "-m", "pytest", "-q", "/plug/checks"),
        volumes={place: {"bind": name, "mode": "ro"} for place, name in folders.items()},
        environment={"PYTHONPATH": "/plug:/tools", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.code == 0, done.output
    # The two checks that need FlashAttention-4 itself are skipped.
    assert " 2 skipped" in done.output.splitlines()[-1]
