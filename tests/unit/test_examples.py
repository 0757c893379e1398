"""The examples that users copy: shown as they are, with images that exist, valid by their schemas."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.unit.test_workflows import schema_problems

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PAGES = {"derive": ROOT / "docs" / "derive.md", "places": ROOT / "docs" / "places.md"}
# The page of own/ links its folders, see test_own_table.py.
FILES = sorted(p for name in PAGES for p in (EXAMPLES / name).rglob("*") if p.is_file())
FILES = [path for path in FILES if path.suffix != ".pyc"]
SCRIPTS = [path for path in FILES if path.suffix == ".sbatch"]
SCHEMAS = json.loads((ROOT / "tests/fixtures/kubernetes.json").read_text())["$defs"]
KINDS = {
    ("v1", "Pod"): "io.k8s.api.core.v1.Pod",
    ("batch/v1", "Job"): "io.k8s.api.batch.v1.Job",
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "jobset.v1alpha2.JobSet",
}
KUBERNETES = sorted(EXAMPLES.glob("places/kubernetes-*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_page_shows_the_file_itself(path: Path) -> None:
    """A link to each file; the block after a line that begins with the link is the whole file."""
    page = PAGES[path.parent.name].read_text()
    name = path.relative_to(EXAMPLES.parent).as_posix()
    link = rf"\[{re.escape(path.name)}\]\({re.escape(name)}\)"
    assert re.search(link, page), f"no link to {name}"
    shown = re.search(rf"^{link}.*\n\n```(?!console)\w*\n((?:.*\n)*?)```$", page, re.MULTILINE)
    assert shown is None or shown[1] == path.read_text()
    assert shown or path.suffix != ".Dockerfile", f"{name} is not shown"


def problems(text: str) -> list[str]:
    """What Kubernetes' and JobSet's schemas say against the objects in a file."""
    errors = []
    for document in yaml.safe_load_all(text):
        name = KINDS[document["apiVersion"], document["kind"]]
        schema = {"$ref": f"#/$defs/{name}", "$defs": SCHEMAS}
        errors += [
            error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)
        ]
    return errors


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_kubernetes_knows_every_field(path: Path) -> None:
    text = path.read_text()
    assert problems(text) == []
    assert problems(text.replace("restartPolicy:", "restartpolicy:"))
    assert problems(text.replace("args:", "arguments:"))
    assert problems(text.replace("limits:", "limit:"))


def pods(document: Any) -> list[dict[str, Any]]:
    """The specifications of pods in an object."""
    if document["kind"] == "JobSet":
        return [
            pod
            for job in document["spec"]["replicatedJobs"]
            for pod in pods({**job["template"], "kind": "Job"})
        ]
    return [document["spec"] if document["kind"] == "Pod" else document["spec"]["template"]["spec"]]


def test_compose_is_valid_by_its_specification() -> None:
    assert schema_problems("compose-spec", EXAMPLES / "places/compose.yaml") == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_job_scripts_pass_shellcheck(path: Path) -> None:
    command = [str(Path(sys.executable).parent / "shellcheck"), "--shell=bash", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "torch-entrypoint torchrun" in path.read_text()
