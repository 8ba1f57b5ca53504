"""Causes of a wrong mean, from what single estimates make of changed losses: see `dissection`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from scipy import optimize
from torch import Tensor

from ...estimators.base import Estimator
from ...estimators.noise import SmoothNoise
from ...oracles.capabilities import MarginalOracle, SamplingOracle
from .cases import FLAT, PEAKED, USUAL, AuditLoss, Structure, all_structures, random_scores, seeded
from .dissection import ROWS, TOLERANCE, Dissection, same
from .laws.declarations import off_structures

MAX_SAMPLES = 32
"""Losses of one estimate that are changed one by one."""

DEVIATIONS = 6.0
"""Standard errors by which a frequency must be off."""

ZERO = 1e-5
"""Share of loss times score below which an estimate is rounding, in single precision too."""

SHARE = 0.03
"""Distance below which frequencies of structures under some noise are those that are seen."""


def cause_by_intervention(estimator: Estimator[Any], structure: Structure, *, counts: bool) -> str:
    """The cause of a wrong mean of the expected loss, from responses of single estimates; empty where none is found.

    Args:
        estimator: whose mean is wrong.
        structure: a small one.
        counts: whether the number of samples is an option, so that a factor made of it was tried already.
    """
    if not isinstance(structure.oracle, SamplingOracle):
        return ""
    for scale in (FLAT, USUAL, PEAKED):
        found = Dissection(estimator, structure, random_scores(structure, scale, 1, "dissection")[0])
        if not found.shown or any(len(z) * ROWS != z[..., 0].numel() // max(1, math.prod(structure.event[:-1])) for z in found.shown):
            return ""
        cause = next(_causes(found, counts=counts), "")
        if cause:
            return cause
    return ""


def cause_of_noise(estimator: Estimator[Any], structure: Structure, noise: SmoothNoise) -> str:
    """Whether the structures that the loss is shown are those of the noise at another scale; empty where they are not."""
    for regime in (FLAT, USUAL):
        found = Dissection(estimator, structure, random_scores(structure, regime, 1, "dissection")[0])
        if not found.shown or off_structures(found.samples[:, :64], structure):
            return ""
        rows = found.scores.expand(16 * ROWS, *structure.event)
        drawn = noise.draw(structure.oracle, rows, generator=seeded(3, "dissection"))
        shown, scales = _shares(found.samples, structure), torch.logspace(-1, 1, 41, base=4, dtype=torch.float64).tolist()
        shares = [_shares(structure.oracle.argmax(rows + scale * drawn), structure) for scale in scales]
        distances = [float((share - shown).abs().max()) for share in shares]
        best = min(range(len(scales)), key=lambda index: distances[index])
        if distances[best] < SHARE < distances[len(scales) // 2]:
            return f"the structures are those of noise {scales[best]:.2g} times as large: is it multiplied by its scale twice, or never?"
    return ""


def _shares(structures: Tensor, structure: Structure) -> Tensor:
    """Counts of each structure among some."""
    flat = structures.reshape(-1, 1, *structure.event).double()
    return (flat == all_structures(structure)).flatten(2).all(-1).double().mean(0)


def _causes(found: Dissection, *, counts: bool) -> Iterator[str]:
    """The first is the cause."""
    if off_structures(found.samples[:, :64], found.structure):
        yield from _relaxed(found)
        return
    if _twice(found):
        yield "two samples of one estimate are the same in every row: the same noise is used twice, where independent draws are due"
    size, wanted = float(found.estimate.abs().max()), float(found.losses.abs().max() * found.directions().abs().max())
    if 0 < size < ZERO * wanted:
        yield "the estimate is 0 up to rounding: the baseline is fitted to the losses of the same samples, and leaves nothing of them"
        return
    if size == 0:
        if found.differentiated:
            yield "the gradient of the loss does not reach the scores: is a straight-through sample written hard + soft − soft.detach()?"
        yield "the estimate is 0 whatever the losses are: the loss is detached, or nothing that depends on the scores multiplies it"
        return
    if found.size > MAX_SAMPLES:
        return
    if found.differentiated and float(found.responses.abs().max()) < TOLERANCE * float(found.estimate.abs().max()):
        yield (
            "the estimate is made of the gradient of the loss alone, as a straight-through estimate: without a score-function term it is "
            "unbiased for linear losses only; add one, or declare `unbiased` False"
        )
        return
    yield from _rounded(found)
    yield from _not_linear(found)
    yield from _own_mass(found)
    yield from _not_detached(found)
    if found.linear:
        yield from _other_distribution(found)
        yield from _other_sample(found, counts=counts)
    yield from _fitted(found)


def _twice(found: Dissection) -> bool:
    """Whether two samples agree in every row, and are random."""
    same = found.equal - torch.eye(found.size).to(found.equal)
    varies = (found.samples != found.samples[:, :1]).flatten(2).any(-1).any(-1)
    return bool(((same == 1) & varies).any())


def _relaxed(found: Dissection) -> Iterator[str]:
    """The loss is shown points between the structures."""
    if float(found.estimate.abs().max()) == 0:
        yield "the estimate is 0 whatever the losses are: the loss is detached, or nothing that depends on the scores multiplies it"
        return
    oracle, loss = found.structure.oracle, AuditLoss(found.structure)
    if isinstance(oracle, MarginalOracle):
        leaf = found.scores.detach().clone().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(loss(oracle.marginals(leaf)), leaf)
        if same(slope.flatten().expand_as(found.estimate), found.estimate):
            yield "the estimate is the gradient of the loss at the marginals: L(E z) in place of E L(z), where samples are due"
            return
    yield from _not_detached(found)
    if found.differentiated:
        yield "the loss is differentiated at points between the structures: the mean is that of a relaxed loss, not of the loss of samples"


def _rounded(found: Dissection) -> Iterator[str]:
    """Small changes of losses change nothing."""
    moves = found.estimate != 0
    weights = torch.linspace(1, 2, math.prod(found.structure.event), dtype=torch.float64)

    def unmoved(size: float) -> float:
        def change(values: Tensor, first: int, z: Tensor) -> Tensor:
            return values * (1 + size * (z.flatten(z.ndim - found.structure.ndim) @ weights.to(z)).to(values))

        return float((moves & (found.run(change) == found.estimate)).sum() / moves.sum())

    for size, name in ((1e-5, "float16 or bfloat16"), (1e-9, "float32")):
        if unmoved(size) > 0.5 > unmoved(0.03):
            yield f"losses that differ by a factor of 1 + {size:g} give the same estimate: it is computed in {name}"
            return


def _not_linear(found: Dissection) -> Iterator[str]:
    """Losses of another scale."""
    if same(found.constant, found.estimate):
        yield "the estimate does not depend on the losses: the score-function term is missing, or the losses in it are detached"
        return
    weights, start = torch.linspace(0, 1e-4, math.prod(found.structure.event), dtype=torch.float64), found.constant

    def scaled(size: float, *, bent: bool = False) -> Tensor:
        """Losses of another size, which are not multiples of each other where they are bent."""

        def change(values: Tensor, first: int, z: Tensor) -> Tensor:
            bend = 1 + (z.flatten(z.ndim - found.structure.ndim) @ weights.to(z)).to(values) if bent else 1
            return size * values * bend

        return found.run(change) - start

    if same(scaled(1e6), scaled(2e6), 1e-3):
        yield (
            "the estimate stops growing with the losses: losses or advantages are clipped"
            if (level := same(scaled(1e6), scaled(1e6, bent=True), 1e-6))
            and not (bool(scaled(1e6).any()) and same(scaled(1e-4), scaled(1e6), 1e-3))
            else "the estimate does not grow with the losses: they are replaced by their ranks or signs"
            if level
            else "the estimate does not grow with the losses: advantages are divided by their standard deviation, or by another norm"
        )
    elif not same(1e4 * scaled(1e-4), found.estimate - start, 1e-3):
        small = same(2 * scaled(1e-4), scaled(2e-4), 1e-3)
        yield (
            "the estimate is linear in small losses, and not in greater ones: losses or advantages are clipped"
            if small
            else "the estimate is not linear in the losses: they are transformed before the score multiplies them"
        )


def _own_mass(found: Dissection) -> Iterator[str]:
    """Sums over a set of distinct structures, divided by its mass, row by row."""
    if found.size < 2 or float((found.equal - torch.eye(found.size).to(found.equal)).max()) > 0:
        return
    s, weights = found.directions(), found.log_chances.softmax(0)
    if float(found.log_chances.exp().sum(0).max()) < 1 - TOLERANCE:
        formula = ((found.log_chances.exp() * found.losses).unsqueeze(-1) * s).sum(0)
        if same(formula, found.estimate):
            yield "the sum goes over a set of structures, weighted by p(z): what lies outside the set is left out"
            return
    centred = found.losses - (weights * found.losses).sum(0)
    for values in (found.losses, centred):
        formula = ((weights * values).unsqueeze(-1) * s).sum(0)
        if same(formula, found.estimate):
            yield "the losses of a set are weighted by p(z) / p(set): the set is normalised by its own mass"
            return


def _not_detached(found: Dissection) -> Iterator[str]:
    """``ĝ − w Σ L_i s_i`` is ``Σ (u s_i + v log p(z_i))`` with one v, which is the gradient of a baseline."""
    if off_structures(found.samples[:1, :64], found.structure):
        return
    varies = (found.samples != found.samples[:, :1]).flatten(1).any(-1).tolist()
    inside = [i for i in range(found.size) if varies[i] and not off_structures(found.samples[i : i + 1, :64], found.structure)]
    directions, chances = found.directions()[inside].sum(0), found.log_chances[inside].sum(0)
    weighted = (found.losses[inside].unsqueeze(-1) * found.directions()[inside]).sum(0)
    d = found.estimate.shape[-1]
    if len(torch.unique(found.estimate, dim=0)) * (d - 1) < 2 * (d + 2):  # some direction fits a few rows
        return
    eye = torch.eye(d, dtype=torch.float64)
    own = [(chances.reshape(-1, 1, 1) * eye).reshape(-1, d)]
    columns = [weighted.reshape(-1, 1), directions.reshape(-1, 1)]
    wanted = found.estimate.reshape(-1, 1)
    short = torch.cat(columns, 1)
    long = torch.cat([*columns, *own], 1)
    before, after = (block @ torch.linalg.lstsq(block, wanted, driver="gelsd").solution for block in (short, long))
    if same(after, wanted) and not same(before, wanted, 1e-4):
        yield "log p(z) times a fixed direction is part of the estimate: the gradient of a baseline, which is not detached"


def _frequencies(found: Dissection) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Distinct structures that were shown: numbers ``[N, rows]``, their chances, and how often each was shown and should be."""
    flat = found.samples.flatten(2)
    _, numbers = torch.unique(flat.reshape(-1, flat.shape[-1]), dim=0, return_inverse=True)
    numbers = numbers.reshape(flat.shape[:2])
    count = int(numbers.max()) + 1
    chances = torch.zeros(count, dtype=torch.float64).scatter_(0, numbers.flatten(), found.log_chances.exp().flatten())
    seen = torch.bincount(numbers.flatten(), minlength=count).double()
    return numbers, chances, seen, chances * numbers.numel()


def _independent(found: Dissection) -> bool:
    """Whether samples look like independent ones of p."""
    _, chances, seen, due = _frequencies(found)
    n, repeats = found.size, float(chances.square().sum())
    pairs = (found.equal.sum() - n) / (n * (n - 1))
    same = abs(float(pairs) - repeats) < DEVIATIONS * math.sqrt(repeats * (1 - repeats) / ROWS)
    return same and float(((seen - due).abs() / (n * due.clamp(min=1.0)).sqrt()).max()) < DEVIATIONS


def _other_distribution(found: Dissection) -> Iterator[str]:
    """Samples are not from p."""
    off = found.equal - torch.eye(found.size).to(found.equal)
    numbers, chances, seen, due = _frequencies(found)
    constant = found.mixture(found.directions())
    if found.size > 1 and float(off.max()) == 0 and float(chances.square().sum()) * ROWS > 100:
        if constant is not None:
            yield "samples of one estimate never repeat: they are drawn without replacement, and weighted as if drawn with"
        return
    # Samples of one estimate may depend on each other; those of different rows do not.
    error = (found.size * due.clamp(min=1.0)).sqrt()
    if float(((seen - due).abs() / error).max()) < DEVIATIONS:
        return
    if constant is not None:
        yield "the samples have another distribution than p: importance weights p/q are missing, or the scores are not those of the samples"
        return
    if found.own_weights is None:
        return
    total = found.own_weights.sum(0)
    if found.size > 1 and same(total, torch.ones_like(total)):
        yield "weights of samples are divided by their sum: such a ratio is biased, and that of the sums of several batches less so"
        return
    weights = torch.zeros_like(chances).scatter_(0, numbers.flatten(), found.size * found.own_weights.flatten())
    ratio, least, most, error = due / seen, float(weights.min()), float(weights.max()), DEVIATIONS / seen.sqrt()
    capped = (weights > (1 - TOLERANCE) * most) & (ratio > most * (1 + error))
    raised = (weights < (1 + TOLERANCE) * least) & (ratio < least * (1 - error))
    if bool((capped | raised).any()) and bool((((weights / ratio - 1).abs() < error) | capped | raised).all()):
        low, high = float(ratio.min()), float(ratio.max())
        yield f"importance weights are clipped: they go from {least:.3g} to {most:.3g}, and p/q from {low:.3g} to {high:.3g}"


def _other_sample(found: Dissection, *, counts: bool) -> Iterator[str]:
    """The factor of each loss, if it is the same mixture of scores in all rows."""
    n, directions = found.size, found.directions()
    mixture = found.mixture(directions)
    if mixture is not None:
        own, others = mixture.diagonal(), mixture - torch.diag(mixture.diagonal())
        flat = torch.full((n,), 1 / n, dtype=torch.float64)
        if n == 1:
            return
        if not counts and same(own, flat * n):
            yield f"gain {n} = N with N = {n}: the samples are summed, not averaged"
        elif not counts and same(mixture, (torch.eye(n).to(own) - 1 / n) / n):
            yield f"gain {1 - 1 / n:.4g} = (N − 1)/N with N = {n}: the baseline of a sample includes the sample itself"
        elif not counts and same(own, flat / n):
            yield f"gain {1 / n:.4g} = 1/N with N = {n}: the mean over the samples is taken twice"
        elif not counts and same(own, flat * n / (n - 1)):
            yield f"gain {n / (n - 1):.4g} = N/(N − 1) with N = {n}: the sum is divided by N − 1, or its correction is made twice"
        elif 0 < int((own.abs() < TOLERANCE).sum()) < n and same(own[own.abs() > TOLERANCE], flat[own.abs() > TOLERANCE]):
            left = (own.abs() < TOLERANCE).nonzero().flatten() + 1
            yield f"the score of sample {', '.join(map(str, left.tolist()))} of {n} is left out, and the sum is still divided by {n}"
        elif float(own.sum()) < 0.5 and float(others.max()) > float(own.max()) + 0.5 / n:
            yield "the loss of a sample is multiplied by the score of another sample"
        return
    along = (found.responses * directions).sum(-1) / directions.square().sum(-1)
    if float(along.mean().abs()) < min(DEVIATIONS * float(along.std()) / math.sqrt(ROWS), 0.1 / n):
        yield "the loss of a sample is multiplied by the score of another sample: the mean is 0 whatever the loss"
        return
    yield from _other_score(found)


def _other_score(found: Dissection) -> Iterator[str]:
    """Scores of p(z), at another temperature, or without the mean."""
    if same(found.size * found.responses, found.log_chances.exp().unsqueeze(-1) * found.directions()):
        yield "the loss is multiplied by the gradient of p(z), where that of log p(z) is due"
        return
    flat = found.samples.flatten(2)
    if found.mixture(flat) is not None:
        yield "the score of a sample is z, not z − μ: it is not centred; is its log-probability ⟨θ, z⟩ without the normaliser?"
        return

    def residual(log_temperature: float) -> float:
        columns = found.directions(math.exp(log_temperature))[:, :256].flatten(1).mT
        wanted = found.responses[:, :256].flatten(1).mT
        fit = columns @ torch.linalg.lstsq(columns, wanted, driver="gelsd").solution
        return float((fit - wanted).norm() / wanted.norm())

    best = optimize.minimize_scalar(residual, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10})
    if best.fun < 1e-4:
        yield f"the score of a sample is that of the temperature {math.exp(best.x):.3g}: samples and log-probabilities have different ones"


def _fitted(found: Dissection) -> Iterator[str]:
    """The weight of a sample's own score depends on the other samples, and is too small in the mean."""
    directions, scaled = found.directions(), found.size * found.responses
    numbers, _, seen, _ = _frequencies(found)
    if found.size < 2 or found.mixture(directions) is not None:
        return
    if (own_weights := found.own_weights) is not None:
        of_structure = torch.zeros(len(seen), dtype=torch.float64).scatter_(0, numbers.flatten(), own_weights.flatten())
        if same(of_structure[numbers], own_weights):  # of the sample alone: no baseline
            return
    count = len(seen)
    some = directions[:, :256].movedim(0, -1)
    inside = some @ torch.linalg.pinv(some, rtol=1e-9) @ scaled[:, :256].movedim(0, -1)
    if not same(inside, scaled[:, :256].movedim(0, -1)) or not _independent(found):
        return
    own = torch.zeros(count, directions.shape[-1], dtype=torch.float64).index_add_(0, numbers.flatten(), directions.flatten(0, 1))
    got = torch.zeros_like(own).index_add_(0, numbers.flatten(), scaled.flatten(0, 1))
    spread = (scaled - directions).flatten(0, 1).square().sum() / seen.sum()
    missing = 1 - float((got * own / seen.unsqueeze(-1)).sum() / (own * own / seen.unsqueeze(-1)).sum())
    error = math.sqrt(float(spread) / float((own * own / seen.unsqueeze(-1)).sum()) * found.size)
    if missing > DEVIATIONS * error:
        yield (
            "the baseline of a sample is fitted to the loss of the sample itself too: its score has a weight of "
            f"{1 - missing:.2g}/N in the mean, where 1/N is due"
        )
