"""What a real engine answers while other commands change what it has."""

from __future__ import annotations

import subprocess
import threading

from tests.integration.support import TESTS, Built
from torch_images.host.engine import Engine


def test_images_come_and_go_while_they_are_listed(engine: Engine) -> None:
    """Moby 26.1 then answers 404 for the whole list: here, some one listing in seven."""
    name = f"{TESTS}:comes-and-goes"

    def change() -> None:
        for number in range(25):
            # An empty archive is an image without files; the message makes each another one.
            make = ["docker", "import", f"--message={number}", "-", name]
            subprocess.run(make, input=bytes(1024), check=True, capture_output=True)
            engine.untag(name)

    changes = threading.Thread(target=change)
    changes.start()
    listings = 0
    while changes.is_alive():
        engine.tags()
        listings += 1
    changes.join()
    assert listings > 10
    assert name not in engine.tags()


def test_run_returns_stdout_after_stderr(engine: Engine, built: Built) -> None:
    """The engine mixes the two streams in any order, and the last line is read as a result."""
    done = engine.run(built.digest, "-c", "echo first; echo warned >&2; echo last", entrypoint="sh")
    assert done.output == "warned\nfirst\nlast\n"
