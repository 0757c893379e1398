"""The SBOM of an image: its build writes it into the image; this module reads and checks it.

CycloneDX 1.6, JSON: https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_images import jsondoc
from torch_images.build.render import FOLDER
from torch_images.errors import UsageError, VerifyError
from torch_images.host import outputs
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace

PATH = f"{FOLDER}/cyclonedx.json"  # scanners of a derived image do not look for this name
_SECONDS = len("2026-11-28T00:00:00")


def read(image: str, engine: Engine) -> str:
    """The SBOM of an image.

    Raises EngineError if the image has none, VerifyError if it is not valid CycloneDX 1.6, and
    UsageError for a derived image, which still contains the SBOM of its base.
    """
    text = _text(image, engine)
    dated = str(_check(image, text).get("metadata", {}).get("timestamp", ""))
    # Both are the date of the newest lock.
    if dated[:_SECONDS] != engine.inspect(image).created[:_SECONDS]:
        raise UsageError(
            f"{image} was built on another image, whose SBOM it contains",
            "scan the image itself, for example with grype or trivy",
        )
    return text


def save(image: str, identifier: str, workspace: Workspace, engine: Engine) -> Path:
    """Write the SBOM of a built image to the output folder. Returns its path.

    Keeps a file that is already this image's, so that a repeated build starts no container for it.
    Raises as `read` does.
    """
    path = workspace.output / "sbom" / f"{identifier}.cdx.json"
    mark = path.with_suffix(".of")  # digest of the image
    if path.exists() and mark.exists() and mark.read_text() == image:
        return path
    text = _text(image, engine)
    _check(image, text)
    mark.unlink(missing_ok=True)
    outputs.write(path, text)
    outputs.write(mark, image)
    return path


def _text(image: str, engine: Engine) -> str:
    return engine.read_files(image, PATH)[PATH.rpartition("/")[2]]


def _check(image: str, text: str) -> Any:
    """The parsed SBOM. Raises VerifyError unless it is valid CycloneDX 1.6."""
    # Importing the schema's validator takes longer than all else in a repeated build.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    try:
        bill = jsondoc.parse(text)
        problem: object = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    except jsondoc.MalformedError as error:
        problem = error
    if problem:
        raise VerifyError(f"{image}: {PATH} is not valid CycloneDX: {str(problem)[:300]}")
    return bill
