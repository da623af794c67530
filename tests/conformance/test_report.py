"""What a report counts, keeps and says."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from plugrl_gym.conformance.checks import Check, Severity, by_clause, clause_order
from plugrl_gym.conformance.evidence import abbreviate
from plugrl_gym.conformance.report import Report

CHECKS = (
    Check("4.10", "server", Severity.VIOLATION, "the data is as long as shape and dtype say"),
    Check("4.9", "server", Severity.NOTE, "little-endian is customary"),
    Check("2.5", "server", Severity.VIOLATION, "no text frame | is sent"),
    Check("2.5", "client", Severity.VIOLATION, "the same of clients"),
    Check("9.2.4", "server", Severity.VIOLATION, "a feature works"),
)


def report() -> Report:
    return Report("server", CHECKS, "ws://somewhere")


# ------------------------------------------------------------------------------------- checks


def test_clauses_are_ordered_as_numbers() -> None:
    assert [check.clause for check in by_clause(CHECKS).values()] == [
        "2.5", "2.5", "4.9", "4.10", "9.2.4",
    ]  # fmt: skip
    assert clause_order("9.2.10") > clause_order("9.2.9")


def test_one_clause_has_one_check_for_each_subject() -> None:
    with pytest.raises(ValueError, match=r"two checks of the server for clause 2\.5"):
        by_clause((*CHECKS, CHECKS[2]))


# ------------------------------------------------------------------------------------- counts


def test_report_of_nothing_passes_and_says_what_was_not_looked_at() -> None:
    empty = report()
    assert empty.exit_code == 0
    assert [found.check.clause for found in empty.not_exercised] == ["2.5", "4.9", "4.10", "9.2.4"]


def test_observation_counts_and_returns_what_it_was_told() -> None:
    graded = report()
    assert graded.observe("2.5", True) is True
    assert graded.observe("2.5", False) is False
    (found,) = graded.violations
    assert (found.passed, found.failed, found.result) == (1, 1, "violated")


def test_note_fails_nobody() -> None:
    graded = report()
    graded.observe("4.9", False, got="big-endian")
    assert graded.exit_code == 0
    assert [found.check.clause for found in graded.notes] == ["4.9"]
    assert graded.violations == []


def test_problem_fails_without_any_violation() -> None:
    graded = report()
    graded.problem("the server died")
    graded.problem("the server died")
    assert (graded.exit_code, graded.problems) == (1, ["the server died"])


def test_unknown_clause_is_a_mistake_of_the_grader() -> None:
    with pytest.raises(ValueError, match=r"no check of the server for clause 1\.1"):
        report().observe("1.1", True)
    with pytest.raises(ValueError, match=r"no check of the client for clause 4\.10"):
        Report("client", CHECKS).observe("4.10", True)


def test_evidence_is_kept_of_as_many_scenarios_as_possible() -> None:
    graded = report()
    for scenario in ("a", "a", "a", "a", "b", "c", "d"):
        graded.observe("2.5", False, got=scenario, scenario=scenario)
    (found,) = graded.violations
    assert [piece.scenario for piece in found.evidence] == ["a", "b", "c"]
    assert found.scenarios == {"a": 4, "b": 1, "c": 1, "d": 1}


def test_reason_of_a_clause_without_occasion_is_dropped_when_it_had_one() -> None:
    graded = report()
    graded.skip("needs --state-dim", "4.9", "9.2.4")
    graded.observe("4.9", True)
    reasons = {found["clause"]: found["reason"] for found in graded.to_json()["clauses"]}
    assert reasons == {"2.5": "", "4.9": "", "4.10": "", "9.2.4": "needs --state-dim"}


# ------------------------------------------------------------------------------------ formats


def failed() -> Report:
    graded = report()
    graded.observe("2.5", True)
    for _ in range(2):
        graded.observe(
            "2.5",
            False,
            sent={"message_type": "infer", "env_indices": np.arange(2)},
            came="a\x00\x1b[31m\nb",
            expected="a binary frame",
            got="a text frame",
            scenario="exchange: infos",
        )
    graded.observe("4.9", False, got=np.zeros((2, 3), dtype=">f4"))
    graded.skip("the server does not offer it", "9.2.4")
    return graded


def test_text_names_rule_evidence_frequency_and_scenario() -> None:
    text = failed().to_text()
    assert "does NOT conform" in text
    assert "SPEC 2.5  no text frame | is sent" in text
    assert "failed 2 of 3 times, in: exchange: infos (2)" in text
    assert "expected  a binary frame" in text
    assert "got       a text frame" in text
    assert "sent      {message_type: 'infer', env_indices: int64 [2]: 0, 1}" in text
    assert "Notes (legal, fail nobody)" in text
    assert "got       float32 big-endian [2, 3]: 0, 0, 0, 0, 0, 0" in text
    assert "the server does not offer it: 9.2.4" in text
    assert all(character.isprintable() or character == "\n" for character in text)


def test_text_begins_with_the_verdict() -> None:
    verdicts = {
        "no violation": report(),
        "does NOT conform": failed(),
        "could not be graded": report(),
    }
    verdicts["could not be graded"].problem("nothing listens")
    for verdict, graded in verdicts.items():
        assert verdict in graded.to_text().splitlines()[0]
    assert "nothing listens" in verdicts["could not be graded"].to_text()


def test_json_survives_a_round_trip() -> None:
    value = failed().to_json()
    assert json.loads(json.dumps(value)) == value
    assert value["conforms"] is False
    assert (value["violations"], value["notes"]) == (["2.5"], ["4.9"])
    assert value["not_exercised"] == ["4.10", "9.2.4"]


def test_junit_has_one_case_for_each_clause_and_one_for_the_whole() -> None:
    suites = ElementTree.fromstring(failed().to_junit())
    (suite,) = suites
    names = [case.get("name", "") for case in suite]
    assert names[0] == "the subject can be graded"
    assert [name.split()[0] for name in names[1:]] == ["2.5", "4.9", "4.10", "9.2.4"]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "1", "2")
    assert [child.tag for case in suite for child in case] == [
        "failure", "system-out", "skipped", "skipped",
    ]  # fmt: skip


def test_junit_reports_a_problem_as_an_error() -> None:
    graded = report()
    graded.problem("it died\x00")
    (suite,) = ElementTree.fromstring(graded.to_junit())
    error = suite[0].find("error")
    assert error is not None
    assert "it died" in error.get("message", "")


# ------------------------------------------------------------------------------ abbreviations


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("a sentence of the grader", "a sentence of the grader"),
        (["a", "b"], "['a', 'b']"),
        (True, "true"),
        ({"a": None, b"k": 1.5}, "{a: nil, b'k': 1.5}"),
        (b"", "0 bytes"),
        (b"\x01\xff", "2 bytes: 01 ff"),
        (bytes(100), f"100 bytes: {' '.join(['00'] * 24)} …"),
        (np.arange(20), "int64 [20]: 0, 1, 2, 3, 4, 5, 6, 7, …"),
        (np.array(2.5), "float64 []: 2.5"),
        (np.zeros((0, 3)), "float64 [0, 3]"),
        (np.array(["a", "b\n"]), "str64 [2]: 'a', 'b\\n'"),
        (np.float32(0.1), "float32 []: 0.1"),
        (list(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, … (20 in all)]"),
        ({"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}}, "{a: {b: {c: {d: {e: {…}}}}}}"),
    ],
)
def test_value_is_shown_in_one_line(value: object, text: str) -> None:
    assert abbreviate(value) == text


def test_value_of_any_size_is_shown_in_a_few_hundred_characters() -> None:
    huge = np.broadcast_to(np.array(""), (10**12,))
    for value in (huge, {str(k): "x" * 999 for k in range(9999)}, "y" * 10**6, [[1] * 99] * 99):
        assert len(abbreviate(value)) <= 400
