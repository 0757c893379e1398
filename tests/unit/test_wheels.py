"""Resolving wheels: the choice of a file, and failures."""

from __future__ import annotations

import pytest

from torch_images.config.lock_requests import WheelRequest
from torch_images.errors import CommandError, LockError, NetworkError, TorchImagesError
from torch_images.fetch.resolve import resolve, select
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.platforms import AMD64, ARM64, Platform


def chosen(files: tuple[str, ...], platform: Platform) -> str:
    """The file that is taken from a pylock.toml with these files."""
    wheels = [{"url": f"https://host/{file}", "hashes": {"sha256": "0" * 64}} for file in files]
    package = {"name": "a", "version": "1", "wheels": wheels}
    document = {"lock-version": "1.0", "created-by": "uv", "packages": [package]}
    [(_, wheel)] = select(document, "3.11", platform)
    return wheel.filename


@pytest.mark.parametrize(
    ("files", "amd", "arm"),
    [
        (("a-1-py3-none-any.whl", "a-1-cp311-cp311-manylinux_2_28_x86_64.whl"), 1, 0),
        (("a-1-cp311-cp311-manylinux_2_17_x86_64.whl", "a-1-cp311-cp311-win_amd64.whl"), 0, None),
        (("a-1-cp39-abi3-manylinux2014_x86_64.whl", "a-1-cp312-cp312-manylinux_2_28_x86_64.whl"), 0, None),
        (("a-1-cp311-cp311-manylinux_2_37_x86_64.whl", "a-1-cp311-cp311-musllinux_1_2_x86_64.whl"), None, None),
        (("a-1-cp311-cp311-manylinux2014_aarch64.whl", "a-1-cp311-cp311-manylinux_2_28_aarch64.whl"), None, 1),
        (("a-1-cp311-cp311-manylinux1_x86_64.whl", "a-1-cp311-cp311-manylinux1_aarch64.whl"), 0, None),
    ],
)  # fmt: skip
def test_select_takes_the_best_wheel(
    files: tuple[str, ...], amd: int | None, arm: int | None
) -> None:
    for platform, place in ((AMD64, amd), (ARM64, arm)):
        for given in (files, files[::-1]):
            if place is None:
                with pytest.raises(LockError, match=r"no wheel for Python 3\.11"):
                    chosen(given, platform)
            else:
                assert chosen(given, platform) == files[place]


class Failing(Runner):
    def __init__(self, output: str) -> None:
        self.output = output

    def run(self, command: object, **_: object) -> object:  # type: ignore[override]
        raise CommandError(str(command), 2, self.output)


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("error: Failed to fetch: `x`\n  Caused by: error sending request for url", NetworkError),
        ("  x No solution found when resolving dependencies: a==9", LockError),
    ],
)
def test_resolve_failure_is_one_line(output: str, kind: type[TorchImagesError]) -> None:
    with pytest.raises(kind) as caught:
        resolve(
            WheelRequest(name="x", request=("a",), python="3.11"),
            network=Network(),
            run=Failing(output),
        )
    assert "\n" not in str(caught.value)
