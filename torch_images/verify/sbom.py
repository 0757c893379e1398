"""The bill of materials of an image: written into it by its build, read and checked from here.

CycloneDX 1.6, JSON: https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from torch_images.build.render import FOLDER
from torch_images.errors import VerifyError
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace

PATH = f"{FOLDER}/cyclonedx.json"  # scanners of a derived image do not know this name


def read(image: str, engine: Engine) -> str:
    """The bill of materials in an image.

    Raises EngineError where there is none, VerifyError where it is not valid CycloneDX 1.6.
    """
    text = _text(image, engine)
    _check(image, text)
    return text


def save(image: str, identifier: str, workspace: Workspace, engine: Engine) -> Path:
    """Put the bill of materials of a built image, by its digest, beside the build; say where.

    A file that is this image's already stays, so that a repeated build starts no container for it.
    Raises as `read` does.
    """
    path = workspace.output / "sbom" / f"{identifier}.cdx.json"
    mark = path.with_suffix(".of")  # the image that the file is of, and the file's hash
    if path.exists() and mark.exists() and mark.read_text() == _mark(image, path):
        return path
    text = _text(image, engine)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        _check(image, text)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    mark.write_text(_mark(image, path))
    return path


def _mark(image: str, path: Path) -> str:
    return f"{image} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def _text(image: str, engine: Engine) -> str:
    return engine.read_files(image, PATH)[PATH.rpartition("/")[2]]


def _check(image: str, text: str) -> None:
    # The schema's validator takes longer to import than a repeated build takes for all the rest.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    if problem := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise VerifyError(f"{image}: {PATH} is not valid CycloneDX: {str(problem)[:300]}")
