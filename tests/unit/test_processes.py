"""How checks of containers start programs: one, or one for each of several GPUs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.container.processes import child, environment, ranks

SAY = "import os, sys; print(sys.argv[1:], os.environ['NCCL_NVLS_ENABLE'])"


def test_a_child_gets_words_and_gives_what_it_prints() -> None:
    assert child("import sys; print(sys.argv[1:])", "a", "b c") == "['a', 'b c']\n"


def test_a_child_that_fails_is_quoted() -> None:
    with pytest.raises(AssertionError, match="this is why"):
        child("raise SystemExit('this is why')")


def test_an_environment_is_this_one_with_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "1")
    monkeypatch.setenv("TWO", "2")
    found = environment({"THREE": "3"}, ["TWO"])
    assert (found["ONE"], found["THREE"], "TWO" in found) == ("1", "3", False)


@pytest.mark.parametrize("own", [None, "1"])
def test_ranks_are_numbered_and_keep_what_nccl_is_told(
    own: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    if own:
        monkeypatch.setenv("NCCL_NVLS_ENABLE", own)
    said = ranks(SAY, 2, tmp_path, "word")
    assert said == [f"['{n}', '2', '{tmp_path}/store', 'word'] {own or 0}\n" for n in range(2)]


def test_where_one_rank_fails_the_others_end(tmp_path: Path) -> None:
    """They would wait for it for minutes."""
    code = "import sys, time\nif sys.argv[1] == '1': sys.exit('this is why')\ntime.sleep(60)"
    begun = time.monotonic()
    with pytest.raises(AssertionError, match="this is why"):
        ranks(code, 2, tmp_path)
    assert time.monotonic() - begun < 30
