"""What becomes of the figures of the benchmark of builds; the builds themselves take an hour."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.builds import rows
from benchmarks.builds.__main__ import read
from benchmarks.builds.lab import Lab
from benchmarks.builds.report import Line, left_out, plot, summary, table
from tests.unit.fakes import FakeRunner
from torch_images.host.engine import Engine
from torch_images.host.network import Network

FIGURES = {
    "cold": [
        {"our seconds": 30.0, "plain seconds": 100.0, "our bytes": 2e9},
        {"our seconds": 60.0, "plain seconds": 100.0, "our bytes": 2e9},
        {"our seconds": 20.0, "plain seconds": 80.0, "our bytes": 3e9},
    ],
    "commands": [{"list seconds": 0.4}],
    "release": [],
}


def test_ratios_are_taken_within_each_round() -> None:
    found = summary(FIGURES)
    assert found[0] == Line(
        row="cold", what="seconds", ours=30, plain=100, ratio=0.3, spread=(0.25, 0.6)
    )
    assert found[1] == Line(
        row="cold", what="bytes", ours=2e9, plain=None, ratio=None, spread=(2e9, 3e9)
    )
    assert [line.what for line in found[2:]] == ["list seconds"]


def test_table_and_plot(tmp_path: Path) -> None:
    lines = table(summary(FIGURES)).splitlines()
    assert lines[2] == "| cold | seconds | 30.0 s | 100.0 s | 0.30 | 0.25, 0.60 |"
    assert lines[3] == "| cold | bytes | 2.00 GB |  |  | 2.00 GB, 3.00 GB |"
    files = [tmp_path / name for name in ("a.svg", "b.svg")]
    for file in files:
        plot(summary(FIGURES), file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "cold, seconds" in files[0].read_text()


def test_what_was_measured_is_not_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rows, "ROWS", {"a": lambda _: {"x": 1.0}, "b": lambda _: {"x": 2.0}})
    lab = Lab(
        engine=None,  # type: ignore[arg-type]
        run=FakeRunner(),
        network=Network(),
        project=tmp_path,
        cache=tmp_path,
    )
    known = {"a": [{"x": 0.0}, {"x": 0.0}], "b": [{"x": 0.0}]}
    names = [name for name, _ in rows.rounds(lab, ("a", "b"), 3, known)]
    assert names == ["b", "a", "b"]


def test_figures_of_other_sources_are_not_added_to(tmp_path: Path) -> None:
    kept, head = tmp_path / "builds.json", {"commit": "new", "machine": {"cores": 2}}
    document = {"commit": "old", "machine": {"cores": 2}, "rows": FIGURES}
    with pytest.raises(SystemExit, match="to go on from; leave --resume out"):
        read(kept, head, FakeRunner())
    kept.write_text(json.dumps(document))
    assert read(kept, head, FakeRunner()) == ({"commit": "old", "machine": {"cores": 2}}, FIGURES)
    with pytest.raises(SystemExit, match="other sources or another machine"):
        read(kept, head, FakeRunner({"git": (1, "")}))
    with pytest.raises(SystemExit, match="other sources or another machine"):
        read(kept, head | {"machine": {"cores": 4}}, FakeRunner())


def lab(folder: Path) -> Lab:
    return Lab(
        engine=None,  # type: ignore[arg-type]
        run=FakeRunner(),
        network=Network(),
        project=folder,
        cache=folder,
    )


def test_the_ways_to_build_take_turns_in_being_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []

    def side(name: str, what: str) -> rows.Row:
        def measure(_: Lab) -> rows.Figures:
            done.append(name)
            return {f"{what} seconds": float(len(done))}

        return measure

    sides = {"plain": side("plain", "plain"), "our": side("our", "our")}
    monkeypatch.setattr(rows, "_SIDES", sides | {"tuned": side("tuned", "plain")})
    found = list(rows.rounds(lab(tmp_path), ("cold", "tuned"), 3, {}))
    assert done == [
        *("plain", "our", "tuned"),
        *("our", "tuned", "plain"),
        *("tuned", "plain", "our"),
    ]
    assert found[:2] == [
        ("cold", {"plain seconds": 1, "our seconds": 2}),
        ("tuned", {"plain seconds": 3, "our seconds": 2}),
    ]
    done.clear()
    known = {"cold": [{"x": 0.0}] * 2}
    list(rows.rounds(lab(tmp_path), ("cold",), 4, known))
    assert done == ["plain", "our", "our", "plain"]
    done.clear()
    list(rows.rounds(lab(tmp_path), ("tuned",), 1, {}))
    assert done == ["our", "tuned"]


def test_nothing_built_before_helps_a_row_from_nothing(tmp_path: Path) -> None:
    """Nor its verification, which the same command would take over for the same digest."""
    project, cache = tmp_path / "project", tmp_path / "cache"
    for part in ("layers", "listings", "parents", "tools"):
        (cache / part).mkdir(parents=True)
    report = project / "build" / "reports" / "sha256-0.json"
    report.parent.mkdir(parents=True)
    report.write_text("{}")
    removed: list[str] = []
    engine = cast(
        "Engine",
        SimpleNamespace(
            tags=lambda prefix: (f"{prefix}a:1",),
            ours=lambda *_: (SimpleNamespace(id="sha256:0"),),
            untag=removed.append,
        ),
    )
    run = FakeRunner()
    dataclasses.replace(lab(project), cache=cache, engine=engine, run=run).empty()
    assert removed == ["torch-a:1", "torch-images-plaina:1", "sha256:0"]
    assert run.commands == [["docker", "buildx", "prune", "--force", "--all"]]
    assert [part.name for part in cache.iterdir()] == ["tools"]
    assert not report.exists()


def test_the_command_of_a_user_says_what_took_how_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image = {"seconds": {"build": 100.0, "verify": 60.0}, "compat": None}
    asked: list[tuple[str, ...]] = []

    def invoke(_: Lab, *words: str) -> str:
        asked.append(words)
        return json.dumps([image])

    monkeypatch.setattr(Lab, "empty", lambda _: asked.append(("empty",)))
    monkeypatch.setattr(Lab, "invoke", invoke)
    found = rows.user(lab(tmp_path))
    assert asked == [("empty",), ("build", *rows.RUNTIME, "--json")]
    del found["our seconds"]
    assert found == {
        "building, seconds": 100, "checking, seconds": 60, "with compat, images": 0
    }  # fmt: skip
    image["compat"] = "580.1"  # type: ignore[assignment]
    assert rows.user(lab(tmp_path))["with compat, images"] == 1
    assert "| user | with compat, images | 1 |" in table(
        summary({"user": [{"with compat, images": 1.0}]})
    )


def test_the_user_runs_the_command_of_the_readme(root: Path) -> None:
    command = " ".join(("./inv", "build", *rows.RUNTIME))
    assert f"```console\n{command}\n```" in (root / "README.md").read_text()


def test_each_row_says_what_it_leaves_out(root: Path) -> None:
    assert set(rows.LEAVES_OUT) == set(rows.ROWS)
    page = (root / "docs" / "performance.md").read_text()
    assert left_out(rows.LEAVES_OUT) in page


def test_a_tuned_build_gets_uv_and_layers_in_zstd(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Path
) -> None:
    (tmp_path / "locks").symlink_to(root / "locks")
    (tmp_path / "cache").mkdir()
    made = tmp_path / "plain" / rows.LOCKS[0]
    made.mkdir(parents=True)
    monkeypatch.setattr(Lab, "base", lambda _: "oci-layout://base")
    monkeypatch.setattr(Lab, "start", lambda *_: None)
    monkeypatch.setattr("benchmarks.builds.lab.install_tools", lambda *_: Path("/tools"))
    run = FakeRunner()
    bench = dataclasses.replace(lab(tmp_path), cache=tmp_path / "cache", run=run)
    assert bench.build_tuned(rows.LOCKS[0]) == bench.build_plain(rows.LOCKS[0])
    tuned, plain = run.commands
    assert "--build-context=uv=/tools" in tuned
    assert any("compression=zstd" in word for word in tuned)
    assert not any("zstd" in word or "uv=" in word for word in plain)
    for command, name in ((tuned, "tuned"), (plain, "baseline")):
        [file] = [word.partition("=")[2] for word in command if word.startswith("--file=")]
        assert Path(file).name == f"{name}.Dockerfile"
        assert Path(file).exists()
