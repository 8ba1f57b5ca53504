"""Comparisons for programs: strict JSON, CSV, JUnit."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

from ...suites.base import Row
from ...suites.comparison.claims import Claim
from ...suites.comparison.gating import GateResult, reaction
from ...suites.comparison.timing import TimeComparison
from ...suites.comparison.verdicts import Comparison
from . import words

Record = dict[str, Any]


def record(item: Comparison) -> Record:
    """One comparison, flat; what has no value is None, and what is infinite a text."""
    return {
        **item.key._asdict(),
        "verdict": item.verdict,
        "base": _value(item.base),
        "head": _value(item.head),
        "scale": item.scale,
        "change": finite(item.change.value),
        "low": finite(item.change.low),
        "high": finite(item.change.high),
        "method": item.method,
        "p_value": item.p_value,
        "p_adjusted": item.p_adjusted,
        "reason": item.reason,
    }


def finite(value: float | None) -> float | str | None:
    """JSON knows no infinity."""
    return value if value is None or math.isfinite(value) else str(value)


def _value(row: Row | None) -> float | str | None:
    return None if row is None else finite(row.value)


def comparison_json(base: str, others: Sequence[tuple[str, Sequence[Comparison]]]) -> str:
    """All candidates against the base."""
    found = [{"head": head, "comparisons": [record(item) for item in items]} for head, items in others]
    return json.dumps({"base": base, "heads": found}, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def comparison_csv(base: str, others: Sequence[tuple[str, Sequence[Comparison]]]) -> str:
    """One line per number."""
    lines = [{"compared_with": base, "run": head, **record(item)} for head, items in others for item in items]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(lines[0]) if lines else ["compared_with", "run", "verdict"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()


def gate_json(result: GateResult, exit_code: int) -> str:
    """The whole gate."""
    content = {
        "outcome": result.outcome,
        "exit_code": exit_code,
        "alpha": result.settings.alpha,
        "failures": [words.sentence(item) for item in result.failures],
        "warnings": [words.sentence(item) for item in result.warnings],
        "comparisons": [record(item) for item in result.comparisons],
        "claims": [_claim(item) for item in result.claims],
        "timings": [_timing(item) for item in result.timings],
        "idle_overrides": result.idle,
    }
    return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _claim(item: Claim) -> Record:
    found = {"broken": item.broken, "exact": item.exact, "effect": finite(item.effect), "p_adjusted": item.p_adjusted}
    return {**item.key._asdict(), **found}


def _timing(item: TimeComparison) -> Record:
    change = {name: finite(value) for name, value in zip(("change", "low", "high"), vars(item.change).values(), strict=False)}
    return {
        **item.cell._asdict(),
        "verdict": item.verdict,
        **change,
        "pairs": item.pairs,
        "p_adjusted": item.p_adjusted,
        "reason": item.reason,
    }


def junit(result: GateResult) -> bytes:
    """One test case per check, as test reports of CI systems read it: failures fail, what is open is skipped."""
    cases = list(_cases(result))
    failed = sum(state == "failure" for *_, state, _ in cases)
    skipped = sum(state == "skipped" for *_, state, _ in cases)
    totals = {"name": "structgrad gate", "tests": str(len(cases)), "failures": str(failed), "skipped": str(skipped), "errors": "0"}
    root = ElementTree.Element("testsuite", totals)
    for group, name, state, message in cases:
        case = ElementTree.SubElement(root, "testcase", {"classname": group, "name": name})
        if state:
            ElementTree.SubElement(case, state, {"message": message})
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _cases(result: GateResult) -> Iterator[tuple[str, str, str, str]]:
    """Class, name, ``failure`` or ``skipped`` or nothing, message."""
    states = {"fail": "failure", "warn": "skipped", "pass": ""}
    for item in result.comparisons:
        key, state = item.key, states[reaction(item.verdict, result.settings)]
        yield f"structgrad.{key.problem}.{key.estimator}", f"{words.quantity(key)} of {words.place(key)}", state, words.sentence(item)
    for claim in result.claims:
        name = f"unbiased on {claim.key.instance}, {claim.key.stage} ({claim.key.suite})"
        yield (
            f"structgrad.{claim.key.problem}.{claim.key.estimator}",
            name,
            "failure" if claim.broken else "",
            claim.reason if claim.broken else "",
        )
    for timing in result.timings:
        state = states[reaction(timing.verdict, result.settings)]
        yield f"structgrad.{timing.cell.problem}.{timing.cell.estimator}", f"time, {timing.cell.stage}", state, words.sentence(timing)


def github_lines(result: GateResult, most: int = 10) -> Iterable[str]:
    """Lines that GitHub shows beside a job; ten of a kind are all that it keeps."""
    for level, found in (("error", words.findings(result, "fail", most)), ("warning", words.findings(result, "warn", most))):
        for line in found.lines:
            text = line.replace("%", "%25").replace("\r", "").replace("\n", "%0A")
            yield f"::{level} title=structgrad gate::{text}"
