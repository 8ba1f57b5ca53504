"""``structgrad recommend``: an estimator for a structure, a loss, a batch and an entropy level, from existing measurements."""

import dataclasses
import math
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from ...suites.statistics.interval import Interval
from ...suites.text import ZERO, coefficient, estimate, exponential, listed, number, percent, plural, significant
from .options import option
from .outcome import sentences

if TYPE_CHECKING:
    from ..analysis.recommendation import Candidate, Recommendation, Recommended

NEWEST = "your newest finished run on a score file with this structure in ./structgrad-results, else published"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecommendOptions:
    """Options of `recommend`."""

    oracle: str = option(dataclasses.MISSING, "Options", "NAME", shown=False, kind="oracles")
    """Structure, with or without sizes: spanning_tree, 'subset[n=20,k=5]'."""
    loss: str | None = option(None, "Options", "NAME", shown="all measured losses", kind="losses")
    """Your own loss, ./my.py:loss, examined for --loss-gradients; or a measured one, whose rows are used if there are any."""
    loss_gradients: str | None = option(None, "Options", "YES|NO", shown="yes, or that of --loss")
    """yes if your loss is differentiable at relaxed inputs; no if it is a black box."""
    unbiased: bool = option(False, "Options", None)
    """Only unbiased estimators."""
    batch: int = option(32, "Options", "B")
    """Batch size; estimates are averaged over the batch."""
    loss_cost: float = option(0.0, "Options", "X")
    """Time of one evaluation of your loss, in units of one REINFORCE estimate."""
    stage: str = option("early", "Options", "LEVEL", "--stage", "--entropy-level", kind="stages")
    """Entropy level of your model: init, early, final, or h=<entropy / maximal entropy>, such as h=0.4."""
    run: str | None = option(None, "Options", "DIR", shown=NEWEST)
    """Your own run: a folder, a results.parquet, or a URL; or “published”, the table of the package."""
    all: bool = option(False, "Options", None)
    """Also print all eligible estimators in their order."""
    json: bool = option(False, "Options", None)
    """Print JSON."""


def recommend(options: RecommendOptions) -> None:
    """Recommend an estimator for your structure, loss, batch size and entropy level, from existing measurements.

    Every candidate gets the time of one REINFORCE estimate per item of the batch. Candidates are ordered by
    ρ = E⟨ĝ, g⟩ / (‖g‖ √E‖ĝ‖²), with ĝ the average over the batch and g the exact gradient: 1 is as good as g, 0 is useless.
    Ties are listed. An estimator whose average is exactly 0 in most cases is never recommended.
    """
    with sentences():
        if options.loss_gradients not in ("yes", "no", None):
            raise ValueError(f"--loss-gradients got {options.loss_gradients!r}; expected yes or no")
        from ..analysis import recommendation
        from ..comparison import json_text
        from ..published import NAME

        run = recommendation.newest_run(options.oracle) if options.run is None else None if options.run == NAME else options.run
        wish: dict[str, Any] = {name: getattr(options, name) for name in ("loss", "unbiased", "batch", "loss_cost", "stage")}
        gradients = {"yes": True, "no": False}.get(options.loss_gradients or "")
        found = recommendation.recommend(options.oracle, loss_gradients=gradients, run=run, **wish)
        if options.json:
            typer.echo(json_text(dataclasses.asdict(found)), nl=False)
        else:
            typer.echo("\n".join(lines(found, whole=options.all)))


def lines(found: "Recommendation", *, whole: bool = False) -> list[str]:
    """A recommendation for people, with all eligible estimators if it is to be whole."""
    wish, about, known = found.wish, found.about, found.predictors
    asked = [wish.oracle, "differentiable loss" if wish.loss_gradients else "black-box loss", "unbiased" if wish.unbiased else ""]
    price = f"an evaluation of the loss takes {significant(wish.loss_cost)} REINFORCE estimates" if wish.loss_cost else ""
    asked += [f"batch of {wish.batch}", price, f"entropy level {wish.stage}"]
    text = [", ".join(filter(None, asked)), *(line for note in found.notes for line in _wrapped(note))]
    for answer in found.answers:
        text += ["", *_wrapped(f"Loss {answer.loss}" + (f": {answer.meaning}." if answer.meaning else "."), "")]
        text += [line for sentence in _sentences(answer) for line in _wrapped(sentence)]
        for one in answer.order if whole else ():
            standing = "best" if one is answer.best else "tied" if one in answer.tied else ""
            cost = f"time × {number(one.cost)}" if answer.timed else ""
            text.append(f"  {one.estimator:<28} ρ {estimate(one.rho):<26} {cost:<16}{standing}".rstrip())
    same = "all get the same time" if all(answer.timed for answer in found.answers) else "all do the same work"
    environment, day = about.get("environment", {}), str(about.get("finished") or about.get("started") or "").partition("T")[0]
    commit = f"structgrad {environment['commit'][:9]}" if environment.get("commit") else ""
    end = (
        f"ρ = E⟨ĝ, g⟩ / (‖g‖ √E‖ĝ‖²) lies between −1 and 1, higher is better. g is the exact gradient, ĝ the average over a batch; {same}. "
        "Brackets are 95 % intervals.",
        *_of_training(known, wish.oracle),
        f"From {found.source}: {', '.join(str(fact) for fact in (day, environment.get('cpu'), commit) if fact)}.",
    )
    return [*text, "", *(line for sentence in end for line in _wrapped(sentence))]


def _sentences(answer: "Recommended") -> Iterator[str]:
    """The answer with its ties or its reason, the evidence, its origin, and the estimators that are left out."""
    best, instances, rivals = answer.best, plural(answer.instances, "instance"), answer.rivals
    ties = listed([f"{rival.estimator} ({number(rival.rho.value)})" for rival in answer.tied], len(answer.tied))
    first, others = f"{best.estimator}, ρ {estimate(best.rho)}", "the only other" if rivals == 1 else f"all {rivals} others"
    if answer.outcome == "useless":
        yield f"No estimator is useful here ({instances}): the ρ of the best is not significantly above 0 ({first})."
    elif answer.outcome == "unclear":
        more = f", and {ties} are not significantly different" if ties else " is the only eligible estimator"
        yield f"No estimator is clearly best here ({instances}): {first}{more}."
    elif ties:
        yield f"Take {first}, or {ties}: not significantly different from it, of {plural(rivals, 'other')}."
    else:
        yield f"Take {first}: {f'significantly better than {others}' if rivals else 'no other estimator is eligible'}."
    yield f"{best.estimator}: {_evidence(best, timed=answer.timed)}."
    counted = " to ".join(dict.fromkeys(exponential(math.log(end)) for end in answer.structures))
    level = answer.stage if answer.entropy is None or answer.stage.startswith("h=") else f"{answer.stage} (h={number(answer.entropy, 2)})"
    sampled = "every possible sample" if best.replicates is None else f"{best.replicates} replicates each"
    where = (answer.problem, answer.sizes, f"{counted} structures", level, instances, sampled)
    times = "" if answer.timed else " No times relative to REINFORCE were taken: all get the same number of estimates."
    if answer.uncertain:
        from ..analysis.answers import uncertain_times

        times = f" {uncertain_times(answer.uncertain)}"
    yield f"Measured on {', '.join(filter(None, where))}.{times}"
    reasons = (" are 0", "found biased", "estimates", "measured", "not resolved")
    left_out = [f"{name} ({reason})" for name, reason in answer.left_out.items() if reason.endswith(reasons)]
    if left_out:
        yield f"Left out: {', '.join(left_out)}."


def _evidence(found: "Candidate", *, timed: bool) -> str:
    """The evidence on an estimator; its bias is a value only where it is not 0 within its error, and 0 only where that is proven."""
    if found.verdict == "unbiased-exact":
        bias = "bias 0, exactly"
    elif found.verdict == "biased" and found.bias is not None and found.bias >= ZERO:
        bias = f"bias {number(found.bias)}"
    else:
        bias = "bias not resolved" if found.bias_bound is None else f"bias at most {number(found.bias_bound)} (95 %)"
    parts = [bias, f"variance {number(found.variance)}" if found.variance > 0 else "no variance"]
    if found.zero is not None:
        parts.append("never 0" if found.zero == 0 else f"0 in {percent(found.zero)} of estimates")
    if timed and found.seconds is not None:
        parts.append(f"{number(found.seconds)} s (REINFORCE × {number(found.cost)})")
    if found.evaluations is not None:
        parts.append(f"{number(found.evaluations)} loss evaluation{'' if found.evaluations == 1 else 's'} each")
    return ", ".join([*parts, f"{number(found.averaged)} averaged"])


def _of_training(known: dict[str, Any], oracle: str) -> Iterator[str]:
    """Whether ρ, or another metric, was confirmed to predict training, and the estimators that trained best on structures of its kind."""
    used, confirmed = known["used"], [f"{one['predictor']} at {one['stage']}" for one in known["confirmed"]]
    state = {"open": "and is not confirmed", "refuted": "and is too low to rely on"}.get(used["verdict"], "and is confirmed")
    others = f"Confirmed: {'; '.join(confirmed)}" if confirmed else "No metric of gradients is confirmed to predict training"
    correlation = coefficient(Interval(*used["correlation"]))
    yield (
        f"The rank correlation of ρ with {known['outcome']} was {correlation} over {known['tasks']} trained tasks, {state}. "
        f"{others} ({known['page']})."
    )
    mine = f"by {used['predictor']} at {used['stage']}"
    ways = "; ".join(f"{way} {share}" for way, share in known["choices"].items() if way[:3] != "by ")
    if mine in known["choices"]:
        yield f"A choice by ρ came {known['choices'][mine]} of the way from floor to ceiling. Others: {ways}."
    kind = oracle.partition("[")[0].rpartition("_")[2]  # a tree is like other trees, and a tied chain like a linear one
    for task, one in known["trained"].items():
        if one["best"] and one["structure"].rpartition("_")[2] == kind:
            best = ", ".join(f"{name} ({number(accuracy)})" for name, accuracy in one["best"])
            yield f"Trained best on the task {task} ({one['structure']}), by accuracy: {best}."


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, 120, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False, break_on_hyphens=False)
