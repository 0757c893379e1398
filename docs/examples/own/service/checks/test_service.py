import subprocess
import time
import urllib.error
import urllib.request


def answer() -> bytes:
    """What the service answers; b"" before it listens."""
    try:
        with urllib.request.urlopen("http://127.0.0.1:8000/") as page:
            return page.read()
    except urllib.error.URLError:
        return b""


def test_answers() -> None:
    server = subprocess.Popen(["uvicorn", "service:app"])
    try:
        while not (text := answer()):
            assert server.poll() is None
            time.sleep(0.2)
        assert b"+cu130" in text
    finally:
        server.terminate()
