"""Colours and shapes of estimators on charts: families of a kind share a hue."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

GREY = "#808080"
"""The colour of the exact gradient, and of no other estimator."""

_KINDS = {
    GREY: "exact",
    "#0173b2": "reinforce reinforce_constant reinforce_running_mean reinforce_greedy reinforce_sampled reinforce_optimal reinforce_learned "
    "muprop double_cv antithetic_pairs",
    "#b28600": "reinforce_conditional_mean reinforce_normalised reinforce_ppo rloo vargrad sum_and_sample unordered_set "
    "importance_weighted_set local_expectation step_local_expectation",
    "#028e66": "step_reinforce step_greedy step_sampled step_conditional_mean step_optimal step_learned step_leave_one_out step_ppo "
    "step_ste step_st_gumbel",
    "#dc4413": "ste ste_marginals ste_sample simple identity identity_perturbed gst reinmax reinmax_rao reinmax_cv",
    "#c05fd0": "gumbel_softmax st_gumbel decoupled_st_gumbel gumbel_rao relaxed_top_k relaxed_top_k_st gumbel_crf gumbel_crf_st",
    "#8a5a3c": "perturb_and_map perturb_and_parse stochastic_softmax stochastic_sparsemap perturbed_optimizer perturbed_multiplicative",
    "#d6336c": "spigot spigot_steps spigot_ce spigot_eg blackbox imle aimle path_quadrature",
    "#6f63e0": "structured_attention differentiable_dp sparsemap sparsemap_marginalisation sparsemax_marginalisation top_k_sparsemax "
    "disarm_sb disarm_tree carms rodeo",
    "#6f8500": "entmax fusedmax oscarmax csparsemax csoftmax arm disarm arsm rebar relax",
}
"""Families by hue. Each hue has a contrast of at least 3 : 1 on a white page and on a dark one."""

_HUE = {family: hue for hue, families in _KINDS.items() for family in families.split()}
_OTHER = "#1f93a8"
_BRIGHTNESS = (0.135, 0.285)
"""Relative luminances between which a colour has a contrast of 3 : 1 on both backgrounds."""

_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
_WIDEST = 30


def looks(frame: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """A colour of its own and a shape of Vega-Lite for every estimator of a run.

    Within a hue, estimators go from dark to light and have different shapes.
    """
    kinds: dict[str, list[str]] = {}
    for estimator, family in frame[["estimator", "family"]].drop_duplicates("estimator").astype(str).itertuples(index=False, name=None):
        kinds.setdefault(_HUE.get(family, _OTHER), []).append(estimator)
    return {
        estimator: (
            hue if len(same) == 1 or hue == GREY else _shade(hue, position / (len(same) - 1)),
            _SHAPES[(number + position) % len(_SHAPES)],
        )
        for number, (hue, same) in enumerate(kinds.items())
        for position, estimator in enumerate(same)
    }


def _shade(hue: str, place: float) -> str:
    """A hue, mixed with black or white until its luminance lies at ``place`` (0 to 1) between the allowed ones."""
    low, high = _BRIGHTNESS
    wanted = low * (high / low) ** place
    parts = [int(hue[start : start + 2], 16) for start in (1, 3, 5)]
    target = 0 if luminance(hue) > wanted else 255
    mixed = ("#" + "".join(f"{round(part + share / 256 * (target - part)):02x}" for part in parts) for share in range(257))
    return min(mixed, key=lambda colour: abs(luminance(colour) - wanted))


def luminance(colour: str) -> float:
    """The relative luminance of WCAG.

    Example:
        >>> luminance("#000000"), luminance("#ffffff")
        (0.0, 1.0)
    """
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return round(0.2126 * red + 0.7152 * green + 0.0722 * blue, 6)


def short_name(estimator: str) -> str:
    """The name of an estimator for a figure: the class of your own file or module, and at most 30 letters.

    Example:
        >>> short_name("imle[lambda=2.5]"), short_name("./a/long/path/mine.py:Mine[k=2]")
        ('imle[lambda=2.5]', 'Mine[k=2]')
    """
    name, bracket, options = estimator.partition("[")
    short = name.rpartition(":")[2] + bracket + options
    return short if len(short) <= _WIDEST else short[: _WIDEST - 1] + "…"
