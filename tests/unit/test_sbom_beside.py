"""The bill of materials beside a build is read from the image once, and again where it may differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace
from torch_images.verify import sbom

BILL = {
    "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
    "bomFormat": "CycloneDX",
    "specVersion": "1.6",
    "version": 1,
}


class Images:
    """An engine; `read` are the images that a container was made of."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def read_files(self, image: str, path: str) -> dict[str, str]:
        self.read.append(image)
        return {"cyclonedx.json": json.dumps(BILL | {"serialNumber": serial(image)})}


def serial(image: str) -> str:
    return f"urn:uuid:3e671687-395b-41f5-a30f-a58921a69b7{image[-1]}"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(
        root=tmp_path, cache=tmp_path, network=cast("Any", None), locks=tmp_path, made=tmp_path
    )


def test_a_file_of_the_same_image_is_not_read_again(workspace: Workspace) -> None:
    images = Images()
    engine = cast("Engine", images)
    path = sbom.save("sha256:1", "cu130", workspace, engine)
    assert sbom.save("sha256:1", "cu130", workspace, engine) == path
    assert images.read == ["sha256:1"]
    assert sbom.save("sha256:2", "cu130", workspace, engine) == path
    assert serial("sha256:2") in path.read_text()
    assert images.read == ["sha256:1", "sha256:2"]


def test_a_file_that_was_changed_is_written_again(workspace: Workspace) -> None:
    images = Images()
    path = sbom.save("sha256:1", "cu130", workspace, cast("Engine", images))
    for spoil in (lambda: path.write_text("{}"), path.unlink):
        spoil()
        sbom.save("sha256:1", "cu130", workspace, cast("Engine", images))
        assert serial("sha256:1") in path.read_text()
    assert len(images.read) == 3
