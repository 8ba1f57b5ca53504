"""Laws of an estimator that a few calls decide, in one table: shapes, randomness, batches, direction and declarations."""

import contextlib
import hashlib
import math
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from ...estimators import Estimator, ExactMarginalisation
from ...estimators.own import FunctionEstimator
from ...oracles.capabilities import MarginalOracle, Oracle
from ...oracles.random_streams import SeedBlocks
from ..base import check_finite
from ..truth.closed_form import central_difference
from .cases import COUNTED, EXTREME, FLAT, USUAL, AuditLoss, Case, Structure, masked_scores, off_structures, random_scores, seeded
from .result import Check, confirmed, numbers, to_change

ROWS = 6
DISTRIBUTION_ROWS = 160  # rows whose distribution is compared, if their numbers cannot be
SIGN_ROWS = 512  # random scores of the test of the sign

_TOLERANCE: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-10, "equal_nan": True}
_SHRUNK = "the loss is averaged over the batch inside, so that its gradient shrinks as 1/B: differentiate the sum of the losses"
_PASSES = ("enumerations", "listings", "support_losses", "completions", "swap_losses", "alternatives")
"""Passes of a size that depends on the structure. If one is declared, only the gradients of the loss are counted."""


def shapes(case: Case) -> Iterator[Check]:
    """Estimates are shaped like the scores, values are one per row, the loss gets ``[..., *batch, *event]``."""
    for batch in ((ROWS,), (2, 3), ()):
        scores = case.scores(USUAL, ROWS)[: math.prod(batch)].reshape(*batch, *case.structure.event)
        tail, counts = tuple(scores.shape), case.observed(scores, "shapes")
        odd = [tuple(point.shape) for point in counts.points if point.shape[max(point.ndim - len(tail), 0) :] != tail]
        if counts.estimate.shape != tail:
            yield case.check("shapes", "", f"estimates {tuple(counts.estimate.shape)} for scores {tail}")
            return
        check_finite(counts.estimate.reshape(-1, *case.structure.event), case.subject.estimator.name)
        if odd:
            cause = "rows that are flattened: a loss with data for each row cannot tell them apart"
            yield case.check("shapes", "", f"the loss was shown {odd[0]} for scores {tail}; expected [..., *batch, *event]", cause)
            return
        if not isinstance(case.subject.estimator, FunctionEstimator):
            value = case.fresh().surrogate(AuditLoss(case.structure), case.structure.oracle, scores, generator=seeded(1, "shapes"))
            if tuple(value.shape) != batch:
                yield case.check("shapes", "", f"the surrogate is {tuple(value.shape)} for a batch {batch}; expected one per row")
                return
            if not bool(value.isfinite().all()):
                yield case.check("finite", "", f"the surrogate is {float(value[~value.isfinite()][0])} at scores of {USUAL:g}")
                return
    yield case.check("shapes", "one estimate per row, in any batch shape")


def dtypes(case: Case) -> Iterator[Check]:
    """Single precision stays single precision."""
    counts, bad = case.observed(case.scores(USUAL, ROWS).float(), "dtypes"), ""
    if others := {point.dtype for point in counts.points} - {torch.float32}:
        bad = f"scores of torch.float32, and the loss was shown structures of {', '.join(map(str, others))}"
    if counts.estimate.dtype != torch.float32 or not counts.estimate.is_cpu:
        bad = f"scores of torch.float32 on cpu gave estimates of {counts.estimate.dtype} on {counts.estimate.device}"
    yield case.check("dtypes", "float32 stays float32, on the device of the scores", bad)


def behaviour(case: Case) -> Iterator[Check]:
    """The seed decides everything, nothing is kept between calls, and no argument is changed."""
    estimator, scores, others = case.fresh(), case.scores(USUAL, ROWS), case.scores(USUAL, ROWS, "others")

    def call(rows: Tensor, seed: int) -> Tensor:
        return check_finite(case.gradient(rows, seeded(seed, "behaviour"), estimator=estimator), estimator.name)

    before, handed, world = snapshot(estimator), scores.clone(), world_state()
    first = call(scores, 1)
    quiet = world_state() == world
    bad = "" if quiet else "a global generator was used: results depend on what else runs"
    yield case.check("global_random", "torch's, numpy's and Python's global generators are left alone", bad, "a draw without generator=")
    after = snapshot(estimator)
    # Errors in every second, third, fourth or fifth call show among these.
    repeats = (False, True, True, False, True, True, True, False, True, True)
    estimates = [call(scores, 1) if again else call(others, 2) for again in repeats]
    odd = [str(number) for number, one in enumerate(estimates, 2) if repeats[number - 2] and not torch.equal(first, one)]
    if quiet:
        bad, cause = "", "state that is kept between calls, outside of the estimator"
        if before != after:
            held = isinstance(before, dict)
            names = sorted(name for name in {**before, **after} if before.get(name) != after.get(name)) if held else ["itself"]
            bad = f"a call changed {', '.join(names)}"
            cause = "state that a call updates in place; return a new estimator instead, as `observed` of reinforce_running_mean does"
        elif odd:
            calls = f"call{'s' if len(odd) > 1 else ''} {', '.join(odd)} of {len(repeats) + 1}"
            bad = f"{calls} gave other numbers than the first, with its seed and its scores"
        elif not estimator.deterministic:
            rows = case.scores(FLAT, 1, "stale").repeat(64, *[1] * len(case.structure.event))
            one, *more = (case.gradient(rows, seeded(seed, "stale"), estimator=estimator) for seed in range(5))
            differ = ~torch.isclose(one, one[:1], rtol=1e-6, atol=1e-9).flatten(1).all(-1)
            if all(torch.equal(one, other) for other in more) and int(differ.sum()) >= 8:
                bad = "5 seeds gave one estimate, and rows of the same scores differ"
                cause = "noise that is kept from an earlier call, outside of the estimator, or comes from a generator that is seeded again"
        yield case.check("state", "the same call gives the same numbers, whatever came between", bad, cause)
    bad = "" if torch.equal(handed, scores) and scores.grad is None else "the scores that were handed in were modified"
    yield case.check("inputs", "scores are not modified", bad, "an operation in place")


def deterministic(case: Case) -> Iterator[Check]:
    """A deterministic estimate does not use its generator."""
    estimator = case.fresh()
    if estimator.deterministic:
        streams = seeded(1, "behaviour"), seeded(2, "behaviour")
        before = streams[0].get_state()
        first, second = (case.gradient(case.scores(USUAL, ROWS), stream, estimator=estimator) for stream in streams)
        fine = torch.equal(before, streams[0].get_state()) and torch.equal(first, second)
        good, bad = "two seeds give one estimate, and the generator is not touched", "it declares to be deterministic, and draws"
        remedy = to_change(estimator, "deterministic", "deterministic: ClassVar[bool] = False")
        yield case.check("deterministic", good, "" if fine else bad, remedy=remedy)


def finite(case: Case) -> Iterator[Check]:
    """No NaN at peaked, tied and masked scores, nothing for forbidden parts, and no NaN with one structure only."""
    estimator, structure, masked = case.fresh(), case.structure, masked_scores(case.structure, 8)
    kinds = {
        "scores of 50": case.scores(EXTREME, 16),
        "ties": case.scores(USUAL, 8, "ties").round(),
        "equal scores": torch.zeros(4, *structure.event, dtype=torch.float64),
        "-inf masks": masked,
        "-inf masks at scores of 50": torch.where(masked.isfinite(), EXTREME * masked, masked),
    }
    found = {name: case.gradient(scores, "finite", estimator=estimator) for name, scores in kinds.items()}
    bad = ", ".join(name for name, estimate in found.items() if not bool(estimate.isfinite().all()))
    yield case.check("finite", "finite at " + ", ".join(kinds), bad and f"NaN or infinite estimates at {bad}")
    idle = (masked == -math.inf) | ~structure.oracle.read_mask(structure.event)
    size = float(torch.where(idle, found["-inf masks"], 0).abs().max())
    bad = f"forbidden or ignored parts get a gradient, up to {size:.3g}; `Oracle.free_parts` tells which may have one" if size else ""
    yield case.check("forbidden", "parts that cannot be chosen get 0", bad)
    single = Structure(structure.name, structure.oracle, structure.single)
    if single.event and estimator.incompatibility(single.oracle, single.event) is None:
        estimate = estimator.gradient(AuditLoss(single), single.oracle, random_scores(single, USUAL, 3), generator=seeded(1, "finite"))
        bad = "" if bool(estimate.isfinite().all()) else "NaN where there is one structure only"
        yield case.check("single", "finite where there is one structure only", bad)


def rows(case: Case) -> Iterator[Check]:
    """The first row of two batches that differ in all other rows, their data and scores, under one seed."""
    estimator, first, second = case.fresh(), case.scores(USUAL, ROWS), case.scores(USUAL, ROWS, "others")
    data, other = torch.linspace(-1, 1, ROWS, dtype=torch.float64), torch.linspace(3, 5, ROWS, dtype=torch.float64)
    second[0], other[0] = first[0], data[0]
    here, there = (
        case.gradient(scores, "rows", AuditLoss(case.structure, shift=shift), estimator)[0]
        for scores, shift in ((first, data), (second, other))
    )
    bad = "" if torch.allclose(here, there, **_TOLERANCE) else "the estimate of a row changes with the other rows of its batch"
    cause = "a baseline, a norm or a running value that is taken over the batch: take it for each row"
    yield case.check("rows", "other rows of a batch do not matter", bad, cause)


class _RowStreams(SeedBlocks):
    """One stream for each row; it refuses draws for another number of rows, as rows that are repeated by hand need."""

    def uniforms(self, rows: int, width: int, device: torch.device) -> Tensor:
        if rows != len(self.seeds):
            raise ValueError(f"`SeedBlocks` got a batch of {rows} rows")
        return super().uniforms(rows, width, device)


def batch(case: Case) -> Iterator[Check]:
    """A row alone against the same row in a batch: exactly if each row has a stream of its own, else by distributions."""
    scores, estimator, loss, seeds = case.scores(USUAL, ROWS), case.fresh(), AuditLoss(case.structure), tuple(range(11, 11 + ROWS))
    streams = _RowStreams(seeds, 1)
    before = streams.get_state()
    try:
        together = case.gradient(scores, streams, estimator=estimator)
        alone = torch.cat([case.gradient(scores[[row]], _RowStreams((seed,), 1), estimator=estimator) for row, seed in enumerate(seeds)])
    except ValueError as error:
        if "SeedBlocks" not in str(error):
            raise
        before = torch.empty(0)  # it samples rows that it repeats by hand
    if not torch.equal(before, streams.get_state()):
        yield _by_distribution(case)
        return
    cause = ""
    raised = case.gradient(scores, _RowStreams(seeds, 1), lambda z: ROWS * loss(z), estimator)
    if torch.allclose(raised, alone, **_TOLERANCE) or torch.allclose(ROWS * together, alone, **_TOLERANCE):
        cause = _SHRUNK
    elif torch.allclose(together / ROWS, alone, **_TOLERANCE):
        cause = "the estimate grows with the batch: something is summed over its rows"
    bad = "" if torch.allclose(together, alone, **_TOLERANCE) else f"a row gets another estimate in a batch of {ROWS} than alone"
    yield case.check("batch", "a row in a batch gets what it gets alone", bad, cause)


def _by_distribution(case: Case) -> Check:
    """Rows of one call and calls of one row, for numbers that are drawn from the generator as a whole."""
    structure, loss, scores = case.structure, AuditLoss(case.structure), case.scores(FLAT, 1)
    random = torch.randn(3, len(loss.linear), generator=seeded(0, "directions", structure.name), dtype=torch.float64)
    directions = torch.cat([loss.linear.unsqueeze(0), random])

    def compared(slot: str, times: int, factor: float = 1.0) -> float:
        estimator, stream = case.fresh(), seeded(case.effort.seed, "batch", slot)
        calls = [case.gradient(scores, stream, loss, estimator) for _ in range(times * DISTRIBUTION_ROWS)]
        many = scores.expand(DISTRIBUTION_ROWS, *structure.event)
        batches = [case.gradient(many, stream, lambda z: factor * loss(z), estimator) for _ in range(times)]
        along = [check_finite(torch.cat(part).flatten(1), estimator.name) @ directions.mT for part in (calls, batches)]
        # Estimates have few values, and a batch is not computed in the order of a row: numbers that differ by rounding are ties.
        unit = 1e-9 * torch.cat(along).abs().amax(0)
        first, second = ((values / torch.where(unit > 0, unit, 1.0)).round().numpy() for values in along)
        return min(1.0, len(directions) * float(stats.ks_2samp(first, second, axis=0).pvalue.min()))

    p_value = confirmed(lambda slot, times: compared(slot, 2 if times > 1 else 1), case.effort.alpha)
    cause = _SHRUNK if p_value < case.effort.alpha and compared("cause", 1, float(DISTRIBUTION_ROWS)) > case.effort.alpha else ""
    detail = f"rows of a batch of {DISTRIBUTION_ROWS} and rows alone are compared by their distributions, p = {p_value:.2g}"
    return Check("batch", structure.name, "holds", detail, cause, p_value)


def jacobian(case: Case) -> Iterator[Check]:
    """The estimate is not the diagonal of the marginals' Jacobian times the gradient of the loss.

    Parts compete, so that raising the score of one lowers the chance of the others: a diagonal alone is an elementwise product.
    """
    scores, oracle, bad = case.scores(USUAL, 8), case.structure.oracle, ""
    counts = case.observed(scores, "jacobian")
    estimate, points = counts.estimate, [point for point in counts.points if point.shape == scores.shape]
    if not counts.counts["loss_gradients"] or not isinstance(oracle, MarginalOracle) or float(estimate.abs().max()) == 0:
        return
    options = {name.rpartition(".")[2]: value for name, value in numbers(case.subject.estimator).items() if value > 0}
    if points:
        leaf = points[-1].clone().requires_grad_()
        with torch.enable_grad():
            (gamma,) = torch.autograd.grad(AuditLoss(case.structure)(leaf).sum(), leaf)
        for temperature in {1.0, options.get("temperature", 1.0), options.get("tau", 1.0)}:
            marginals = oracle.marginals(scores / temperature)
            diagonal = marginals * (1 - marginals) * gamma
            ratio = float((estimate * diagonal).sum()) / max(float(diagonal.square().sum()), 1e-300)
            if ratio > 0 and torch.allclose(estimate, ratio * diagonal, rtol=1e-6, atol=1e-9 * float(estimate.abs().max())):
                bad = "the estimate is diag(J) γ: the other parts' share is left out"
    cause = "diagonal-only Jacobian: μ(1 − μ)γ in place of Cov(z)γ"
    yield case.check("jacobian", "no diagonal in place of the Jacobian", bad, cause)


def sign(case: Case) -> Iterator[Check]:
    """The mean of ``⟨ĝ, g⟩ / ‖g‖²`` over random flat scores is not below 0 for a linear loss."""
    details, loss, seed = [], AuditLoss(case.structure, "linear"), case.effort.seed

    def test(slot: str, times: int) -> float:
        count, stream = times * SIGN_ROWS, seeded(seed, "sign", "scores", slot)
        scores = FLAT * torch.randn(count, *case.structure.event, generator=stream, dtype=torch.float64)
        estimate = check_finite(case.gradient(scores, seeded(seed, "sign", slot), loss), case.subject.estimator.name)
        exact = ExactMarginalisation().gradient(loss, case.structure.oracle, scores, generator=seeded(0))
        ratios = (estimate * exact).flatten(1).sum(-1) / exact.square().flatten(1).sum(-1)
        mean, error = float(ratios.mean()), float(ratios.std()) / math.sqrt(count)
        details.append(f"gain {mean:.3g} ± {2 * error:.2g} over random scores, linear loss")
        # A mean of 0 is rounding of either sign.
        return 1.0 if mean >= -1e-9 else float(special.stdtr(count - 1, mean / max(error, 1e-300)))

    p_value = confirmed(test, case.effort.alpha)
    yield Check("sign", case.structure.name, "holds", details[-1], p_value=p_value)


def declarations(case: Case) -> Iterator[Check]:
    """The calls of one estimate, its capabilities and the points of the loss are as declared."""
    estimator, seen = case.fresh(), case.observed()
    declared = vars(estimator.evaluations())
    wanted = {name: declared[name] for name in (("loss_gradients",) if any(declared[name] for name in _PASSES) else COUNTED)}
    if "kbest" in wanted:
        wanted["kbest"] = min(wanted["kbest"], case.structure.oracle.count(case.structure.event))
    wrong = [name for name, value in wanted.items() if abs(seen.counts[name] - value) > 1e-9]
    bad = "one estimate took " + ", ".join(f"{name} {seen.counts[name]:g} (declared {wanted[name]})" for name in wrong) if wrong else ""
    costs = {**declared, **{name: seen.counts[name] for name in wanted}}
    code = ", ".join(f"{name}={value:g}" for name, value in costs.items() if value)
    meaning = "; ".join(f"{name}: {COUNTED[name]}" for name in wrong)
    declares = ("calls", "calls =") if type(estimator).evaluations is Estimator.evaluations else ("evaluations", "return")
    change = to_change(estimator, declares[0], f"{declares[1]} Evaluations({code})")
    remedy = f"{change}, with these options; what counts, per row of the batch: {meaning}"
    yield case.check("evaluations", "one estimate takes what it declares", bad, remedy=remedy)
    needs = estimator.needs
    used = sorted(kind.__name__ for kind in seen.used if kind is not Oracle and not any(issubclass(need, kind) for need in needs))
    names = ", ".join(dict.fromkeys([*(need.__name__ for need in needs if need is not Oracle), *used]))
    remedy = to_change(estimator, "needs", f"needs: ClassVar[tuple[type[Oracle], ...]] = ({names}{'' if ',' in names else ','})")
    bad = f"it uses {', '.join(used)}, which it does not name in `needs`: it would fail deep inside without" if used else ""
    yield case.check("needs", "it uses what it names", bad, remedy=remedy)
    outside = not estimator.inside_hull and any(off_structures(point, case.structure) for point in seen.points)
    bad = "the loss is evaluated where no structure is, and inside_hull is declared False" if outside else ""
    remedy = to_change(estimator, "inside_hull", "inside_hull: ClassVar[bool] = True")
    yield case.check("hull", "the loss is evaluated where it is declared to be", bad, remedy=remedy)


def parameters(case: Case) -> Iterator[Check]:
    """The surrogate passes the gradient of its value on to the parameters of the loss."""
    scores = case.scores(FLAT, 4)

    def value(weight: Tensor) -> Tensor:
        loss = AuditLoss(case.structure, weight=weight)
        return case.fresh().surrogate(loss, case.structure.oracle, scores, generator=seeded(1, "parameters")).sum()

    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    total = value(weight)
    found = torch.autograd.grad(total, weight, allow_unused=True)[0] if total.requires_grad else None
    # With gradients enabled: an estimator may need that of the loss for its value.
    wanted, doubt = (float(one) for one in central_difference(lambda size: value(weight + size).detach()))
    got = 0.0 if found is None else float(found)
    fine = abs(got - wanted) <= 1e-5 * abs(wanted) + 1e-6 + 10 * abs(doubt)
    bad = "" if fine else f"a parameter of the loss gets {got:.4g}; the derivative is {wanted:.4g}"
    cause = "the value is detached from the loss: a decoder would not learn" if got == 0 else ""
    remedy = "return `losses.mean(0) + term - term.detach()`, where `term` is your surrogate and `losses` are not detached" if cause else ""
    yield case.check("parameters", "a parameter of the loss gets the gradient of the surrogate's value", bad, cause, remedy)


LAWS: tuple[tuple[str, Callable[[Case], Iterator[Check]], bool], ...] = (
    ("shapes", shapes, True),
    ("dtypes", dtypes, True),
    ("behaviour", behaviour, True),
    ("behaviour", deterministic, True),
    ("finite", finite, True),
    ("batch", rows, True),
    ("batch", batch, True),
    ("jacobian", jacobian, True),
    ("sign", sign, True),
    ("evaluations", declarations, False),
    ("parameters", parameters, True),
)
"""Name under which an exception is reported, law, and whether it applies to plain functions."""


def world_state() -> tuple[Any, ...]:
    """The states of the global generators, as values that compare."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - an estimator may use it
    return bytes(torch.get_rng_state().numpy()), str(kind), bytes(np.asarray(keys)), tuple(map(str, rest)), random.getstate()


def snapshot(value: Any, depth: int = 6) -> Any:
    """The contents of an object, and of the variables that a function closes over, as plain values that compare."""
    if isinstance(value, Tensor | np.ndarray):
        held = torch.as_tensor(value).detach().cpu().contiguous()
        return tuple(held.shape), str(held.dtype), hashlib.blake2b(held.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()
    if value is None or depth == 0 or isinstance(value, int | float | str | bytes | bool | complex | type | types.ModuleType):
        return repr(value) if depth else type(value).__name__
    if isinstance(value, list | tuple | set | frozenset):
        return [snapshot(item, depth - 1) for item in value]
    enclosed = {}
    if isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # it is not set yet
                enclosed[name] = cell.cell_contents
    contents = value if isinstance(value, dict) else {**enclosed, **getattr(value, "__dict__", {})}
    return {str(key): snapshot(item, depth - 1) for key, item in contents.items()}
