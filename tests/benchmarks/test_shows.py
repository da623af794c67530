"""What the programs do with records: keep them, go on from them, and make the tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.shows import (
    RESULTS,
    Record,
    Show,
    Task,
    main,
    replace_section,
    setup_line,
    table,
)
from tests.benchmarks.wall_time import WallTime

SHOWS = (
    "learning",
    "resuming",
    "goals",
    "conformance",
    "refusals",
    "takeover",
    "trainers",
    "wall-time",
)


class Doubling(Show):
    """Doubles numbers."""

    name = "doubling"
    module = "tests.benchmarks.test_shows"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--numbers", nargs="+", type=int)
        parser.add_argument("--unit", default="m")

    def tasks(self, options: argparse.Namespace) -> list[Task]:
        return [self._task(number, options.unit) for number in options.numbers]

    def _task(self, number: int, unit: str) -> Task:
        def double(folder: Path) -> Mapping[str, Any]:
            (folder / "trace").write_text(unit)
            return {"doubled": 2 * number}

        return Task(f"doubling/{number}", {"unit": unit}, double)

    def section(self, records: Mapping[str, Record]) -> str:
        return table(("number", "doubled"), [(k, r["doubled"]) for k, r in records.items()])


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "published" / "RESULTS.md"
    path.parent.mkdir()
    path.write_text("# Results\n<!-- doubling -->\nold\n<!-- /doubling -->\nend\n")
    return path


def run(out: Path, *arguments: str) -> int:
    return main(Doubling(), ["--out", str(out), *arguments])


def written(out: Path, results: Path, *arguments: str) -> str:
    assert run(out, *arguments, "--table", "--results", str(results)) == 0
    return results.read_text()


def test_a_table_is_made_of_the_records_that_there_are(tmp_path: Path, results: Path) -> None:
    for number in ("1", "2"):
        assert run(tmp_path, "--numbers", "1", "2", "3", "--only", f"doubling/{number}") == 0
    text = written(tmp_path, results, "--numbers", "1", "2", "3")
    assert text == (
        "# Results\n<!-- doubling -->\n\n"
        "| number | doubled |\n|---|---|\n| doubling/1 | 2 |\n| doubling/2 | 4 |\n\n"
        "<!-- /doubling -->\nend\n"
    )
    assert (tmp_path / "doubling" / "1" / "trace").read_text() == "m"


def test_of_several_records_of_a_task_the_last_counts(tmp_path: Path, results: Path) -> None:
    record = {"key": "doubling/1", "settings": {"unit": "m"}}
    lines = [json.dumps({**record, "doubled": doubled}) for doubled in (7, 8)]
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    assert "| doubling/1 | 8 |" in written(tmp_path, results, "--numbers", "1")


def test_a_record_of_other_settings_does_not_count(tmp_path: Path, results: Path) -> None:
    run(tmp_path, "--numbers", "1", "--only", "doubling/1", "--unit", "km")
    assert "Nothing measured yet." in written(tmp_path, results, "--numbers", "1")


def test_what_has_a_record_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "--numbers", "1", "--only", "doubling/1")
    assert run(tmp_path, "--numbers", "1") == 0
    assert capsys.readouterr().out == "doubling: 1 runs, 0 to do, 1 at a time\n"


def test_records_of_a_table_are_published_and_count_where_that_is_asked_for(
    tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in ("2", "1"):
        run(tmp_path / "a", "--numbers", "1", "2", "--only", f"doubling/{number}")
        written(tmp_path / "a", results, "--numbers", "1", "2")
    published = results.with_name("records.jsonl").read_text().splitlines()
    assert [json.loads(line)["doubled"] for line in published] == [2, 4]
    assert "| doubling/2 | 4 |" in written(tmp_path / "b", results, "--numbers", "1", "2")
    capsys.readouterr()
    elsewhere = ("--numbers", "1", "2", "--results", str(results), "--published")
    assert run(tmp_path / "b", *elsewhere) == 0
    assert capsys.readouterr().out == "doubling: 2 runs, 0 to do, 1 at a time\n"


def test_a_record_tells_versions_and_machine_and_no_path(tmp_path: Path) -> None:
    run(tmp_path, "--numbers", "1", "--only", "doubling/1")
    text = (tmp_path / "records.jsonl").read_text()
    record = json.loads(text)
    assert record["versions"]["gymnasium"]
    assert "cores" in record["machine"]
    assert str(tmp_path) not in text


def test_versions_have_one_order_whether_a_record_is_new_or_published() -> None:
    new = {"plugrl-gym": "1", "gymnasium": "2"}
    records = [
        {"versions": versions, "python": "3", "machine": "one"}
        for versions in (new, dict(sorted(new.items())))
    ]
    assert setup_line(records) == "Measured on one; Python 3, plugrl-gym 1, gymnasium 2."


def test_markers_must_be_there(results: Path) -> None:
    with pytest.raises(ValueError, match="no markers"):
        replace_section(results, "halving", "text")


@pytest.mark.parametrize("name", SHOWS)
def test_the_results_have_a_section_for_each_program(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.md"
    copy.write_text(RESULTS.read_text(encoding="utf-8"), encoding="utf-8")
    replace_section(copy, name, "here")
    assert f"<!-- {name} -->\n\nhere\n\n<!-- /{name} -->" in copy.read_text(encoding="utf-8")


def test_two_timings_at_a_time_are_refused() -> None:
    with pytest.raises(SystemExit, match="--jobs"):
        main(WallTime(), ["--jobs", "2"])
