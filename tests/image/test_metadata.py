"""The configuration of the image: labels, environment, entrypoint and command."""

from __future__ import annotations

import re
from typing import Any

Facts = dict[str, Any]


def test_label(label: str, expected: Facts, config: Facts) -> None:
    assert config["Labels"].get(label) == expected["labels"][label]


def test_no_other_label(expected: Facts, config: Facts) -> None:
    also = {
        "io.github.torch-images.compat.note",
        "io.github.torch-images.compression",
        "org.opencontainers.image.base.digest",
    }
    assert set(config["Labels"]) - also == set(expected["labels"])


def test_base_digest_label(config: Facts) -> None:
    digest = config["Labels"]["org.opencontainers.image.base.digest"]
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest)


def test_environment(expected: Facts, config: Facts) -> None:
    # Equal, not only a part: no setting of the build (proxy, index, certificate) may remain.
    assert dict(line.split("=", 1) for line in config["Env"]) == expected["environment"]


def test_entrypoint(expected: Facts, config: Facts) -> None:
    assert config["Entrypoint"] == expected["entrypoint"]


def test_default_command(expected: Facts, config: Facts) -> None:
    assert config["Cmd"] == expected["command"]


def test_starts_as_root_without_volumes(config: Facts) -> None:
    assert not config.get("User")
    assert not config.get("Volumes")


def test_ports(expected: Facts, config: Facts) -> None:
    assert set(config.get("ExposedPorts") or ()) == {f"{port}/tcp" for port in expected["ports"]}


def test_folder(expected: Facts, config: Facts) -> None:
    assert config.get("WorkingDir") == expected["folder"]


def test_created_is_the_date_of_the_lock(expected: Facts) -> None:
    assert (
        expected["created"].removesuffix("Z").split(".")[0] == expected["lock_date"] + "T00:00:00"
    )


def test_platform(expected: Facts) -> None:
    assert expected["runs"] == expected["platform"]
