"""Estimators by idea. Estimators of one idea have dependent numbers, so that resamples draw ideas and not estimators."""

from __future__ import annotations

import functools

OWN = "own"
"""Prefix of the idea of a user's own estimator; its name follows."""

IDEAS = {
    "exact": "exact",
    "score_function": "score function",
    "policies": "score function",
    "policies.relaxed": "straight-through",
    "factorised.antithetic": "score function",
    "factorised.control_variates": "score function",
    "factorised.coupled_categories": "score function",
    "factorised.discrete_stein": "score function",
    "factorised.local_expectation": "score function",
    "factorised.reinmax": "straight-through",
    "factorised.reinmax_control": "straight-through",
    "factorised.path_quadrature": "straight-through",
    "factorised.gumbel_rao": "Gumbel",
    "straight_through": "straight-through",
    "identity": "straight-through",
    "perturbation.gumbel": "Gumbel",
    "perturbation.gumbel_crf": "Gumbel",
    "perturbation.relaxed_subset": "Gumbel",
    "perturbation": "perturbed maximiser",
    "argmax_differences.spigot": "SPIGOT",
    "argmax_differences.spigot_variants": "SPIGOT",
    "argmax_differences": "implicit differentiation",
    "relaxations": "relaxation",
    "relaxations.sparse": "sparse support",
}
"""Ideas by module, or by folder for the other modules in it."""


@functools.cache
def idea_of(family: str) -> str:
    """The idea of a registry family.

    Example:
        >>> [idea_of(name) for name in ("rloo", "arm", "ste", "gumbel_rao", "spigot_ce", "imle", "sparsemap")]
        ['score function', 'score function', 'straight-through', 'Gumbel', 'SPIGOT', 'implicit differentiation', 'sparse support']
    """
    from ...estimators import ESTIMATORS  # a page without learning does not import torch

    place = ESTIMATORS[family].__module__.partition(".estimators.")[2] if family in ESTIMATORS else ""
    return IDEAS.get(place) or IDEAS.get(place.partition(".")[0]) or f"{OWN}: {family}"
