"""A report as text for people and as JUnit XML for CI."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from plugrl_gym.conformance.findings import Finding

__all__ = ["explain", "to_junit", "to_text"]

_WIDTH = 100


def to_text(subject: str, target: str, problems: Sequence[str], findings: Sequence[Finding]) -> str:
    """A summary, then all that needs attention, then what was not looked at."""
    groups = _by_result(findings)
    lines = [_summary(subject, target, problems, groups)]
    lines += [_wrapped(problem, "", "  ") for problem in problems]
    for result, title in (("violated", "Violations"), ("noted", "Notes (legal, fail nobody)")):
        for finding in groups[result]:
            if finding is groups[result][0]:
                lines += ["", title]
            lines += ["", explain(finding)]
    if len(groups["not exercised"]) == len(findings):
        lines += ["", "No clause had an occasion to be looked at"]
    elif groups["not exercised"]:
        lines += ["", "Not exercised by this run"]
        lines += _not_exercised(groups["not exercised"])
    return "\n".join(lines) + "\n"


def _by_result(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    groups: dict[str, list[Finding]] = {
        "passed": [],
        "violated": [],
        "noted": [],
        "not exercised": [],
    }
    for finding in findings:
        groups[finding.result].append(finding)
    return groups


def _summary(
    subject: str, target: str, problems: Sequence[str], groups: dict[str, list[Finding]]
) -> str:
    name = f"{subject} {target}".strip()
    if problems:
        verdict = "could not be graded"
    elif groups["violated"]:
        verdict = "does NOT conform to PlugRL v1"
    else:
        verdict = "no violation of PlugRL v1 found"
    looks = sum(f.passed + f.failed for group in groups.values() for f in group)
    counts = (
        f"{len(groups['passed'])} clauses kept, {len(groups['violated'])} violated, "
        f"{len(groups['noted'])} noted, {len(groups['not exercised'])} not exercised; "
        f"{looks} observations"
    )
    return f"{name}: {verdict}\n{counts}"


def explain(finding: Finding) -> str:
    """One clause with its evidence, a few lines."""
    check = finding.check
    lines = [_wrapped(f"SPEC {check.clause}  {check.rule}", "  ", "    ")]
    total = finding.passed + finding.failed
    where = ", ".join(
        f"{name} ({count})" if count > 1 else name
        for name, count in finding.scenarios.items()
        if name
    )
    often = f"failed {finding.failed} of {total} times" if total > 1 else "failed"
    lines.append(_wrapped(f"{often}{f', in: {where}' if where else ''}", "    ", "      "))
    for number, piece in enumerate(finding.evidence):
        if number and len(finding.evidence) > 1:
            lines.append("      --")
        if piece.scenario and len(finding.scenarios) > 1:
            lines.append(f"      in        {piece.scenario}")
        for label, text in piece.lines():
            lines.append(_wrapped(text, f"      {label:10}", " " * 16))
    return "\n".join(lines)


def _not_exercised(findings: Sequence[Finding]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for finding in findings:
        reasons.setdefault(finding.reason, []).append(finding.check.clause)
    lines = []
    for reason in sorted(reasons, key=bool):
        clauses = ", ".join(reasons[reason])
        lines.append(_wrapped(f"{reason}: {clauses}" if reason else clauses, "  ", "    "))
    return lines


def _wrapped(text: str, first: str, following: str) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    )


def to_junit(
    subject: str, target: str, problems: Sequence[str], findings: Sequence[Finding]
) -> str:
    """One testcase for each clause, and one more that fails where grading was not possible."""
    groups = _by_result(findings)
    suite = ElementTree.Element(
        "testsuite",
        name=_clean(f"PlugRL v1 {subject} {target}".strip()),
        tests=str(len(findings) + 1),
        failures=str(len(groups["violated"])),
        errors=str(int(bool(problems))),
        skipped=str(len(groups["not exercised"])),
    )
    graded = ElementTree.SubElement(
        suite, "testcase", classname=f"plugrl.{subject}", name="the subject can be graded"
    )
    if problems:
        ElementTree.SubElement(graded, "error", message=_clean("; ".join(problems)))
    for finding in findings:
        _add_testcase(suite, subject, finding)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _add_testcase(suite: ElementTree.Element, subject: str, finding: Finding) -> None:
    check = finding.check
    name = f"{check.clause} {check.rule}"
    case = ElementTree.SubElement(suite, "testcase", classname=f"plugrl.{subject}", name=name)
    if finding.result == "violated":
        message = f"SPEC {check.clause}: {check.rule}"
        ElementTree.SubElement(case, "failure", message=message).text = _clean(explain(finding))
    elif finding.result == "noted":
        ElementTree.SubElement(case, "system-out").text = _clean(explain(finding))
    elif finding.result == "not exercised":
        reason = _clean(finding.reason or "not exercised by this run")
        ElementTree.SubElement(case, "skipped", message=reason)


def _clean(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    return "".join(c for c in text if c in "\n\t" or (c.isprintable() and c not in "\ufffe\uffff"))
