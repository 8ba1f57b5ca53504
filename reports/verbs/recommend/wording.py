"""A recommendation for people and for programs."""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....suites.statistics.interval import Interval
from ....suites.text import ZERO, coefficient_interval, estimate, exponential, number, percent, plural, setting
from ...analysis.recommendation import Candidate, Recommendation, Recommended

_WHEN = {"init": "before training", "early": "early in training", "final": "after training"}
_WIDTH = 120
_INDENT = "  "


def lines(found: Recommendation) -> list[str]:
    """For people."""
    wish = found.wish
    asked = [
        wish.oracle,
        "loss with gradients" if wish.loss_gradients else "loss that gives values only",
        *(["unbiased"] if wish.unbiased else []),
        f"batch of {wish.batch}",
        *([f"an evaluation of the loss takes {setting(wish.loss_cost)} REINFORCE estimates"] if wish.loss_cost else []),
        wish.stage,
    ]
    text = [", ".join(asked), *(line for note in found.notes for line in _wrapped(note))]
    for answer in found.answers:
        text += ["", *_answer_lines(answer)]
        text += [line for one in found.elsewhere if one.loss == answer.loss for line in _wrapped(_beside(one, answer))]
    return [*text, "", *_wrapped(foretelling(found.predictors)), *_wrapped(_source(found))]


def _answer_lines(answer: Recommended) -> Iterator[str]:
    yield from _wrapped(f"Loss {answer.loss}" + (f": {answer.meaning}." if answer.meaning else "."), "")
    yield f"{_INDENT}take {answer.best.estimator}, ρ {estimate(answer.best.rho)}"
    yield from _wrapped(_rivals(answer))
    yield from _wrapped(f"{answer.best.estimator}: {evidence(answer.best, timed=answer.timed)}.")
    yield from _wrapped(_measured(answer))
    zeros = [
        f"{name} ({reason})"
        for name, reason in answer.left_out.items()
        if reason.endswith((" are 0", "found biased", "measured", "not resolved"))
    ]
    if zeros:
        yield from _wrapped(f"Left out: {', '.join(zeros)}.")


def _beside(other: Recommended, answer: Recommended) -> str:
    """What other scores say of the same question."""
    best, tied = other.best, [rival.estimator for rival in other.tied]
    agrees = answer.best.estimator in (best.estimator, *tied)
    also = f", or {answer.best.estimator}" if agrees and tied and best.estimator != answer.best.estimator else ""
    return f"{_where(other)}, {plural(other.instances, 'instance')}: {best.estimator}{also}, ρ {estimate(best.rho)}" + (
        "." if agrees else f"; {answer.best.estimator} is behind."
    )


def _rivals(answer: Recommended) -> str:
    if not answer.rivals:
        return "Nobody else competes."
    if not answer.tied:
        return f"Ahead of the {plural(answer.rivals, 'other')}."
    tied = ", ".join(f"{rival.estimator} ({number(rival.rho.value)})" for rival in answer.tied)
    return f"or {tied}: {len(answer.tied)} of {answer.rivals} that cannot be told from it"


def evidence(found: Candidate, *, timed: bool = True) -> str:
    """What is known of an estimator, in words.

    Example:
        >>> known = Candidate("ste", Interval(0.5), 21.333, 0.2, 0.3, "unresolved", 4.0, 0.0, 2e-5, 1.5, 2.0, 4096)
        >>> evidence(known)
        'bias at most 0.300 (95 %), variance 4, never 0, 2e-5 s (REINFORCE × 1.50), 2 loss evaluations each, 21.3 averaged'
    """
    parts = [bias(found), f"variance {number(found.variance)}" if found.variance > 0 else "no variance"]
    if found.zero is not None:
        parts.append("never 0" if found.zero == 0 else f"0 in {percent(found.zero)} of estimates")
    if timed and found.seconds is not None:
        parts.append(f"{number(found.seconds)} s (REINFORCE × {number(found.cost)})")
    if found.evaluations is not None:
        parts.append(f"{number(found.evaluations)} loss evaluation{'' if found.evaluations == 1 else 's'} each")
    return ", ".join([*parts, f"{number(found.averaged)} averaged"])


def bias(found: Candidate) -> str:
    """The relative bias: a value only where it is not 0 within its error, and 0 only where that is proven.

    Example:
        >>> known = Candidate("rloo", Interval(0.5), 32.0, 0.0, 0.02, "equivalent", 4.0, 0.0, 2e-5, 1.5, 2.0, 4096)
        >>> bias(known), bias(dataclasses.replace(known, verdict="unbiased-exact"))
        ('bias at most 0.0200 (95 %)', 'bias 0, exactly')
        >>> bias(dataclasses.replace(known, verdict="biased", bias=0.5)), bias(dataclasses.replace(known, bias_bound=None))
        ('bias 0.500', 'bias not resolved')
    """
    if found.verdict == "unbiased-exact":
        return "bias 0, exactly"
    if found.verdict == "biased" and found.bias is not None and found.bias >= ZERO:
        return f"bias {number(found.bias)}"
    return "bias not resolved" if found.bias_bound is None else f"bias at most {number(found.bias_bound)} (95 %)"


def _measured(answer: Recommended) -> str:
    """On what: problem, sizes, state, instances, replicates."""
    sampled = "every possible sample" if answer.best.replicates is None else f"{answer.best.replicates} replicates each"
    where = f"Measured on {_where(answer)}, {plural(answer.instances, 'instance')}, {sampled}"
    return where + ("." if answer.timed else "; no times were taken: the same number of estimates for all.")


def _where(answer: Recommended) -> str:
    """Scores, sizes, state."""
    least, most = answer.structures
    counted = " to ".join(dict.fromkeys(exponential(math.log(end)) for end in (least, most)))
    state = answer.stage if answer.entropy is None or answer.stage.startswith("h=") else f"{answer.stage} (h={number(answer.entropy, 2)})"
    return ", ".join(filter(None, [answer.problem, answer.sizes, f"{counted} structures", state]))


def foretelling(known: Mapping[str, Any]) -> str:
    """On what the order rests: how well it foretold what models learn."""
    used, halves = known["used"], known["halves"]
    others = "; ".join(f"{one['predictor']} {_WHEN[one['stage']]} {_signed(one['correlation'])}" for one in known["others"])
    tasks, outcome, found = known["tasks"], known["outcome"], _signed(used["correlation"])
    confirmed = "confirmed" if known["confirmed"] else "not confirmed"
    return (
        f"Rests on the order by ρ of averaged estimates. Over {tasks} learnt tasks its rank correlation with {outcome} was {found} "
        f"({used['predictor']} per item {_WHEN[used['stage']]}); on the held-out half it was {confirmed}, {_signed(halves['held_out'])}. "
        f"Others: {others} ({known['page']})."
    )


def _signed(triple: Sequence[float]) -> str:
    value, low, high = triple
    return coefficient_interval(Interval(value, low, high))


def _source(found: Recommendation) -> str:
    about = found.about
    environment = about.get("environment", {})
    day, commit = str(about.get("finished") or about.get("started") or "").partition("T")[0], environment.get("commit")
    facts = [day, environment.get("cpu"), f"structgrad {commit[:9]}" if commit else ""]
    return f"From {found.source}: {', '.join(str(fact) for fact in facts if fact)}."


def _wrapped(text: str, indent: str = _INDENT) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent + _INDENT, break_long_words=False, break_on_hyphens=False
    )


def as_json(found: Recommendation) -> str:
    """For programs: all that a `Recommendation` holds."""
    return json.dumps(_plain(dataclasses.asdict(found)), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
