"""Spanning trees without replacement: stochastic beam search over the heads of the words, with the matrix-tree theorem at every beginning.

All trees have as many heads, one per word, so that the search goes level by level: the trees that begin with the same heads are a set,
whose mass is a log-partition under scores that forbid every other head, and whose greatest ``log p(z) + Gumbel`` is a Gumbel variable at
its log-mass. Those of the sets that a set splits into are drawn given that their greatest is its own, and the k + 1 greatest go on: the
last of them is the threshold. What is dropped is everything else, and its mass is added up.

Source: Kool, van Hoof & Welling 2019, "Stochastic beams and where to find them", section 3 and appendix B, for sequences.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..capabilities import DrawnSet
from ..numerics import log_sum_exp
from ..random_streams import gumbel_quantile

NUMBERS = 2**22
"""Scores of beginnings that are taken at a time."""


def sample_heads(log_partition: Callable[[Tensor], Tensor], rows: Tensor, items: Tensor, k: int, uniforms: Tensor) -> DrawnSet:
    """Heads ``[k, w, words]`` of k trees of each walk, as `DrawnSet` has structures; where fewer are feasible, the first is repeated.

    Args:
        log_partition: of scores [c, n + 1, n + 1], -inf where no tree is feasible.
        rows: float64 scores [b, n + 1, n + 1], -inf where an arc is forbidden.
        items: [w], the row of each walk.
        k: at most how many trees there are.
        uniforms: float64 [w, 1 + words · (k + 1) · (words + 1)] inside (0, 1): one, and one for every head of every beginning.
    """
    walks, words = len(items), rows.shape[-1] - 1
    noise = gumbel_quantile(uniforms.clone())
    whole = log_partition(rows)[items]
    feasible, slots = whole > -math.inf, torch.arange(k + 1, device=rows.device)
    alive = feasible.unsqueeze(-1) & (slots == 0)
    # The beam, of beginnings [w, k + 1]: their heads so far, greatest perturbed log-probabilities, and log-masses.
    heads = torch.zeros(walks, k + 1, words, dtype=torch.int64, device=rows.device)
    top, mass = torch.where(alive, noise[:, :1], -math.inf), torch.where(alive, 0.0, -math.inf)
    rest = torch.full_like(whole, -math.inf)
    for word, drawn in enumerate(noise[:, 1:].reshape(walks, words, k + 1, words + 1).unbind(1)):
        found = (mass > -math.inf).unsqueeze(-1)
        split = _masses(log_partition, rows, items, torch.where(found, heads, heads[:, :1])[..., :word])
        split = torch.where(found, split - torch.where(feasible, whole, 0).reshape(-1, 1, 1), -math.inf)
        best = below(top, split + drawn).flatten(1).topk(k + 1, -1)
        dropped = split.flatten(1).scatter(-1, best.indices, -math.inf)
        rest = torch.logaddexp(rest, log_sum_exp(dropped, -1))
        heads = heads.gather(1, (best.indices // (words + 1)).unsqueeze(-1).expand(-1, -1, words))
        heads[..., word] = best.indices % (words + 1)
        top, mass = best.values, split.flatten(1).gather(-1, best.indices)
    heads = torch.where(mass[:, :k, None] > -math.inf, heads[:, :k], heads[:, :1])
    return DrawnSet(heads.movedim(1, 0), mass[:, :k], torch.logaddexp(rest, mass[:, k]), top[:, k])


def below(greatest: Tensor, perturbed: Tensor) -> Tensor:
    """Gumbel variables ``[..., c]`` shifted so that the greatest of them is a given one ``[...]``, as the law is given that it is."""
    top, most = perturbed.amax(-1, keepdim=True), greatest.unsqueeze(-1)
    alive = (perturbed > -math.inf) & (most > -math.inf)
    gap = torch.where(alive, perturbed - torch.where(top > -math.inf, top, 0), -1)
    log_rest = torch.where(gap > -math.log(2), (-gap.expm1()).log(), (-gap.exp()).log1p())
    v = torch.where(alive, most - perturbed, 0) + log_rest
    return torch.where(alive, most - v.relu() - v.abs().neg().exp().log1p(), -math.inf)


def _masses(log_partition: Callable[[Tensor], Tensor], rows: Tensor, items: Tensor, heads: Tensor) -> Tensor:
    """Log-weights ``[w, k + 1, n + 1]`` of the trees that begin with heads ``[w, k + 1, word]``, and go on by each; looked at once each."""
    size, word = rows.shape[-1], heads.shape[-1]
    begins = torch.cat([items.reshape(-1, 1, 1).expand(-1, heads.shape[1], 1), heads], -1).flatten(0, 1)
    distinct, place = begins.unique(dim=0, return_inverse=True)
    step = max(1, NUMBERS // size**3)
    return torch.cat([_split(log_partition, rows, part, word) for part in distinct.split(step)])[place].reshape(*heads.shape[:2], size)


def _split(log_partition: Callable[[Tensor], Tensor], rows: Tensor, begins: Tensor, word: int) -> Tensor:
    """``[c, n + 1]`` of beginnings ``[c, 1 + word]``: an item, and heads."""
    scores, size = rows[begins[:, 0]], rows.shape[-1]
    every = torch.arange(size, device=rows.device)
    kept = torch.ones(len(begins), size, size, size, dtype=torch.bool, device=rows.device)
    if word:
        kept[..., 1 : word + 1] &= (every.unsqueeze(-1) == begins[:, None, 1:]).unsqueeze(1)
    kept[..., word + 1] &= every == every.unsqueeze(-1)
    return log_partition(scores.unsqueeze(1).masked_fill(~kept, -math.inf).flatten(0, 1)).reshape(-1, size)
