"""The lines that say how far a run of the integration tests is."""

from __future__ import annotations

import json
from pathlib import Path

from tests.progress import Progress


def test_each_file_is_counted_once(tmp_path: Path) -> None:
    progress = Progress(["test_a.py", "test_b.py"], tmp_path / "none.json")
    assert progress.begin("test_b.py") == "file 1 of 2: test_b.py"
    assert progress.begin("test_b.py") is None
    assert progress.begin("test_a.py") == "file 2 of 2: test_a.py"


def test_the_next_run_says_how_long_the_last_one_took(tmp_path: Path) -> None:
    kept = tmp_path / "build" / "seconds.json"
    first = Progress(["test_a.py"], kept)
    first.add("test_a.py", 70)
    first.add("test_a.py", 4)
    first.save()
    assert Progress(["test_a.py"], kept).begin("test_a.py") == (
        "file 1 of 1: test_a.py, 74 s the last time"
    )


def test_a_file_that_was_left_out_keeps_its_seconds(tmp_path: Path) -> None:
    kept = tmp_path / "seconds.json"
    kept.write_text('{"test_a.py": 3.0, "test_b.py": 5.0}')
    later = Progress(["test_a.py", "test_b.py"], kept)
    later.add("test_a.py", 4)
    later.save()
    assert json.loads(kept.read_text()) == {"test_a.py": 4.0, "test_b.py": 5.0}


def test_a_file_that_is_broken_is_as_good_as_none(tmp_path: Path) -> None:
    kept = tmp_path / "seconds.json"
    kept.write_text('{"test_a.py": ')
    assert Progress(["test_a.py"], kept).begin("test_a.py") == "file 1 of 1: test_a.py"
