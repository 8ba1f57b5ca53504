"""``structgrad recommend``: which estimator to take for a structure, a loss, a batch and a state of the model."""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...suites.statistics.interval import Interval
from ...suites.text import ZERO, coefficient_interval, estimate, exponential, listed, number, percent, plural, setting
from .catalogue import complete
from .outcome import sentences

if TYPE_CHECKING:
    from ..analysis.recommendation import Candidate, Recommendation, Recommended

_ANSWERS = {"yes": True, "no": False}


def recommend(  # noqa: PLR0913 - one parameter per option
    *,
    oracle: Annotated[
        str,
        typer.Option(
            help=r"Structure, with or without sizes: spanning_tree, 'subset\[n=20,k=5]'.",
            metavar="NAME",
            show_default=False,
            autocompletion=complete("oracles"),
        ),
    ],
    loss_gradients: Annotated[
        str, typer.Option(help="yes if your loss is differentiable at relaxed inputs; no if it is a black box.", metavar="YES|NO")
    ] = "yes",
    unbiased: Annotated[bool, typer.Option("--unbiased", help="Only unbiased estimators.")] = False,
    batch: Annotated[int, typer.Option(help="Batch size; estimates are averaged over the batch.", metavar="B")] = 32,
    loss_cost: Annotated[
        float,
        typer.Option(help="Time of one evaluation of your loss, in units of one REINFORCE estimate.", metavar="X"),
    ] = 0.0,
    stage: Annotated[
        str,
        typer.Option(
            "--stage",
            "--entropy-level",
            help="Entropy level of your model: init, early, final, or h=<entropy / maximal entropy>, such as h=0.4.",
            metavar="LEVEL",
            autocompletion=complete("stages"),
        ),
    ] = "early",
    run: Annotated[
        str | None,
        typer.Option(
            help="Your own run: a folder, a results.parquet, or a URL; or “published”, the table of the package.",
            metavar="DIR",
            show_default="your newest finished run on a score file with this structure in ./structgrad-results, else published",
        ),
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Also print all eligible estimators in their order.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recommend an estimator for your structure, loss, batch size and entropy level, from existing measurements.

    Every candidate gets the time of one REINFORCE estimate per item of the batch. Candidates are ordered by
    ρ = E⟨ĝ, g⟩ / (‖g‖ √E‖ĝ‖²), with ĝ the average over the batch and g the exact gradient: 1 is as good as g, 0 is useless.
    Ties are listed. An estimator whose average is exactly 0 in most cases is never recommended.
    """
    with sentences():
        if loss_gradients not in _ANSWERS:
            raise ValueError(f"--loss-gradients got {loss_gradients!r}; expected yes or no")
        from ..analysis.recommendation import newest_run
        from ..analysis.recommendation import recommend as found_by
        from ..published import NAME

        found = found_by(
            oracle,
            loss_gradients=_ANSWERS[loss_gradients],
            unbiased=unbiased,
            batch=batch,
            loss_cost=loss_cost,
            stage=stage,
            run=newest_run(oracle) if run is None else None if run == NAME else run,
        )
        record = _plain(dataclasses.asdict(found)) if as_json else None
        shown = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) if as_json else "\n".join(lines(found, whole=whole))
        typer.echo(shown)


_WHEN = {"init": "before training", "early": "early in training", "final": "after training"}
_WIDTH = 120
_INDENT = "  "


def lines(found: Recommendation, *, whole: bool = False) -> list[str]:
    """For people.

    Args:
        found: the recommendation.
        whole: whether all eligible estimators are listed.
    """
    wish = found.wish
    asked = [
        wish.oracle,
        "differentiable loss" if wish.loss_gradients else "black-box loss",
        *(["unbiased"] if wish.unbiased else []),
        f"batch of {wish.batch}",
        *([f"an evaluation of the loss takes {setting(wish.loss_cost)} REINFORCE estimates"] if wish.loss_cost else []),
        f"entropy level {wish.stage}",
    ]
    text = [", ".join(asked), *(line for note in found.notes for line in _wrapped(note))]
    for answer in found.answers:
        text += ["", *_answer_lines(answer)]
        others = [one for one in found.elsewhere if one.loss == answer.loss and not answer.why]
        text += [line for one in others for line in _wrapped(_other_scores(one, answer))]
        text += [line for one in answer.order if whole for line in _row(one, answer)]
    timed = all(answer.timed for answer in found.answers)
    return [*text, "", *_wrapped(_definition(timed=timed)), *_wrapped(predictive_value(found.predictors)), *_wrapped(_source(found))]


def _answer_lines(answer: Recommended) -> Iterator[str]:
    yield from _wrapped(f"Loss {answer.loss}" + (f": {answer.meaning}." if answer.meaning else "."), "")
    yield from _wrapped(_headline(answer))
    yield from _wrapped(f"{answer.best.estimator}: {evidence(answer.best, timed=answer.timed)}.")
    yield from _wrapped(_measured(answer))
    left_out = [
        f"{name} ({reason})"
        for name, reason in answer.left_out.items()
        if reason.endswith((" are 0", "found biased", "estimates", "measured", "not resolved"))
    ]
    if left_out:
        yield from _wrapped(f"Left out: {', '.join(left_out)}.")


def _headline(answer: Recommended) -> str:
    """The answer, and the ties or the reason behind it."""
    best, ties = answer.best, [f"{rival.estimator} ({number(rival.rho.value)})" for rival in answer.tied]
    first = f"{best.estimator}, ρ {estimate(best.rho)}"
    instances = plural(answer.instances, "instance")
    if answer.outcome == "useless":
        return f"No estimator is useful here ({instances}): the ρ of the best is not significantly above 0 ({first})."
    if answer.outcome == "unclear":
        return f"No estimator is clearly best here ({instances}): {first}, and {listed(ties, len(ties))} are not significantly different."
    if answer.why:
        return f"Take {first}: {answer.why} Also tied: {listed(ties, len(ties))}."
    if ties:
        return f"Take {first}, or {listed(ties, len(ties))}: not significantly different from it, of {plural(answer.rivals, 'other')}."
    if answer.rivals:
        return f"Take {first}: significantly better than {'the only other' if answer.rivals == 1 else f'all {answer.rivals} others'}."
    return f"Take {first}: no other estimator is eligible."


def _other_scores(other: Recommended, answer: Recommended) -> str:
    """Whether other scores of the structure have the same answer."""
    where, named = f"{_where(other)}, {plural(other.instances, 'instance')}", (other.best.estimator, *(one.estimator for one in other.tied))
    if other.outcome in ("unclear", "useless"):
        return f"On {where}, no estimator is {'clearly best' if other.outcome == 'unclear' else 'useful'}."
    if answer.best.estimator not in named:
        return f"Other scores differ: on {where}, {other.best.estimator} is best, ρ {estimate(other.best.rho)}."
    alone = "best" if len(named) == 1 else f"one of {len(named)} ties"
    rho = next(one.rho for one in other.order if one.estimator == answer.best.estimator)
    return f"Other scores agree: on {where}, {answer.best.estimator} is {alone}, ρ {estimate(rho)}."


def _row(one: Candidate, answer: Recommended) -> Iterator[str]:
    """A line of the whole order."""
    standing = "best" if one is answer.best else "tied" if one in answer.tied else ""
    cost = f"time × {number(one.cost)}" if answer.timed else ""
    yield f"{_INDENT}{one.estimator:<28} ρ {estimate(one.rho):<26} {cost:<16}{standing}".rstrip()


def evidence(found: Candidate, *, timed: bool = True) -> str:
    """The evidence on an estimator, in words.

    Example:
        >>> from structgrad.reports.analysis.recommendation import Candidate
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
        >>> from structgrad.reports.analysis.recommendation import Candidate
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
    """On what: problem, sizes, entropy level, instances, replicates."""
    sampled = "every possible sample" if answer.best.replicates is None else f"{answer.best.replicates} replicates each"
    where = f"Measured on {_where(answer)}, {plural(answer.instances, 'instance')}, {sampled}."
    if answer.uncertain:
        from ..analysis.answers import uncertain_times

        return f"{where} {uncertain_times(answer.uncertain)}"
    return where + ("" if answer.timed else " No times were taken: all get the same number of estimates.")


def _where(answer: Recommended) -> str:
    """Scores, sizes, entropy level."""
    least, most = answer.structures
    counted = " to ".join(dict.fromkeys(exponential(math.log(end)) for end in (least, most)))
    state = answer.stage if answer.entropy is None or answer.stage.startswith("h=") else f"{answer.stage} (h={number(answer.entropy, 2)})"
    return ", ".join(filter(None, [answer.problem, answer.sizes, f"{counted} structures", state]))


def _definition(*, timed: bool) -> str:
    """The number that decides, and the meaning of brackets."""
    same = "all get the same time" if timed else "all do the same work"
    return (
        f"ρ = E⟨ĝ, g⟩ / (‖g‖ √E‖ĝ‖²) lies between −1 and 1, higher is better. g is the exact gradient, ĝ the average over a batch; {same}. "
        f"Brackets are 95 % intervals."
    )


def predictive_value(known: Mapping[str, Any]) -> str:
    """The correlation between ρ and the accuracy of trained models, in sentences."""
    used, halves = known["used"], known["halves"]
    others = "; ".join(f"{one['predictor']} {_WHEN[one['stage']]} {_signed(one['correlation'])}" for one in known["others"])
    held_out = f"{'confirmed' if known['confirmed'] else 'did not confirm'} it, {_signed(halves['held_out'])}"
    return (
        f"The rank correlation of ρ with {known['outcome']} was {_signed(used['correlation'])} over {known['tasks']} trained tasks "
        f"({used['predictor']} per item {_WHEN[used['stage']]}). Held-out tasks {held_out}. Other predictors: {others} ({known['page']})."
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


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
