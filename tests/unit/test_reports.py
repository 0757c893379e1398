"""What verbs print after their work: the tables and sentences are in tests/golden."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from torch_images.cli import report
from torch_images.fetch.update import ALTERED, NEWER, UNCHANGED, Finding
from torch_images.maintain.gc import Item
from torch_images.oci.diff import Difference
from torch_images.publish.tag_rules import MOVES, NEW, STAYS, THERE, Move
from torch_images.verify.reproduce import DIFFERENT, IDENTICAL, SAME_CONTENT, Verdict
from torch_images.verify.suites import Check
from torch_images.verify.verify import VerifyReport

# An image for a processor that no machine of ours has, so its command names the platform.
BUILT: dict[str, Any] = {
    "id": "cu130-runtime",
    "platform": "linux/riscv64",
    "digest": "sha256:d",
    "lock": "sha256:l",
    "unlocked": True,
    "own": False,
    "compat": None,
    "size": 1.5e9,
    "seconds": {"build": 12.5, "verify": 3, "verify_processor": 4},
    "tags": ["torch:1-a", "torch:1"],
    "checks": {"passed": 2},
    "observed": {"torch": "2.14.1", "driver": "none"},
}
MOVED = [
    Move(reference="r/x:a", digests=("sha256:n",), state=NEW),
    Move(reference="r/x:b", digests=("sha256:n",), state=MOVES, current="sha256:o"),
    Move(reference="r/x:c", digests=("sha256:n",), state=THERE),
    Move(reference="r/x:d", digests=("sha256:n",), state=STAYS, reason="a newer image has it"),
]
FINDINGS = [
    Finding(lock="base", name="a", version="1", state=UNCHANGED),
    Finding(lock="base", name="b", version="1", state=NEWER, detail="-> 2"),
    Finding(lock="wheel", name="c", version="1", state=ALTERED, detail="run `invoke lock`"),
]
DIFFERENCES = [
    Difference(layer=0, path="Env"),
    *(Difference(layer=1, path=f"etc/{number}") for number in range(40)),
]
PROOF = VerifyReport(
    digest="sha256:d",
    id="cu130-runtime",
    suite="s",
    checks=(
        Check(name="a", outcome="passed", seconds=1),
        Check(name="b", outcome="skipped", seconds=0, message="Skipped: no GPU"),
        Check(name="c", outcome="skipped", seconds=0, message="Skipped: no GPU"),
    ),
    observed={"torch": "2.14.1"},
    seconds=3,
    emulated=True,
)
ITEM = Item(name="layer x", size=2_500_000, used=datetime(2026, 1, 2, 3, 4, tzinfo=UTC))


def verdict(outcome: str, *differences: Difference) -> str:
    return report.verdict(
        Verdict(
            image="i",
            outcome=outcome,
            manifests=("sha256:a", "sha256:b"),
            commit="c" * 40,
            lock="sha256:l",
            lock_date="2026-01-01",
            unlocked=False,
            seconds=1.5,
            differences=differences,
        )
    )


REPORTS = {
    "built": report.built(BUILT),
    "built-unverified": report.built({k: v for k, v in BUILT.items() if k != "checks"}),
    "tags": "\n".join([report.moves(MOVED, done=False), report.moves(MOVED, done=True)]),
    "findings": report.findings(FINDINGS),
    "verified": report.verified(PROOF),
    "removed": "\n".join(report.collected(ITEM, done=done) for done in (False, True)),
    "changed-images": "\n".join(report.changed_images({"a": "1", "b": "2", "c": "3"}, {"a": "0", "c": "3"})),
    "reproduced": verdict(IDENTICAL),
    "reproduced-content": verdict(SAME_CONTENT),
    "reproduced-not": verdict(DIFFERENT, *DIFFERENCES),
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTS)
def test_report_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"reports/{name}.txt", f"{REPORTS[name]}\n")
