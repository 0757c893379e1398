"""The SBOM beside a build, and that of an image of anybody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from torch_images.errors import UsageError, VerifyError
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace
from torch_images.verify import sbom

DAY = "2026-11-02T00:00:00"
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


def test_save_reads_an_image_once(workspace: Workspace) -> None:
    images = Images()
    engine = cast("Engine", images)
    path = sbom.save("sha256:1", "cu130", workspace, engine)
    assert sbom.save("sha256:1", "cu130", workspace, engine) == path
    assert images.read == ["sha256:1"]
    assert sbom.save("sha256:2", "cu130", workspace, engine) == path
    assert serial("sha256:2") in path.read_text()
    assert images.read == ["sha256:1", "sha256:2"]


class Image:
    """An engine with an image of a day, which has this text as its SBOM."""

    def __init__(self, text: str, created: str) -> None:
        self.text, self.created = text, created

    def read_files(self, image: str, path: str) -> dict[str, str]:
        return {path.rpartition("/")[2]: self.text}

    def inspect(self, image: str) -> Image:
        return self


def test_read_refuses_a_derived_image() -> None:
    bill = {**BILL, "serialNumber": serial("1"), "metadata": {"timestamp": f"{DAY}+00:00"}}
    text = json.dumps(bill)
    assert sbom.read("ours", cast("Engine", Image(text, f"{DAY}Z"))) == text
    for image in (Image(text, "2026-11-03T10:11:12.5Z"), Image(json.dumps(BILL), f"{DAY}Z")):
        with pytest.raises(UsageError, match="mine was built on another image"):
            sbom.read("mine", cast("Engine", image))


@pytest.mark.parametrize("text", ["[" * 100_000, '"\\u001b[2J"'])
def test_read_and_save_of_an_invalid_sbom(text: str, workspace: Workspace) -> None:
    engine = cast("Engine", Image(text, ""))
    for use in (
        lambda: sbom.read("mine", engine),
        lambda: sbom.save("mine", "cu130", workspace, engine),
    ):
        with pytest.raises(VerifyError, match="is not valid CycloneDX") as caught:
            use()
        assert str(caught.value).isprintable()
