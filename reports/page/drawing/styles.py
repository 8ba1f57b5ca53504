"""Styles of estimators: one colour and marker per family, the same in every figure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
INK = "#010203"
"""The colour of text and lines. Nothing else has it, so that it can be exchanged for that of the page's text."""

_WIDEST = 30
MARKER_SIZE = 6.5

_HUES = tuple(
    tuple(line.split())
    for line in """
exact
reinforce reinforce_constant reinforce_running_mean reinforce_greedy reinforce_sampled reinforce_optimal reinforce_learned \
muprop double_cv antithetic_pairs
reinforce_conditional_mean reinforce_normalised reinforce_ppo rloo vargrad sum_and_sample unordered_set importance_weighted_set \
local_expectation step_local_expectation
step_reinforce step_greedy step_sampled step_conditional_mean step_optimal step_learned step_leave_one_out step_ppo step_ste step_st_gumbel
ste ste_marginals ste_sample simple identity identity_perturbed gst reinmax reinmax_rao reinmax_cv
gumbel_softmax st_gumbel decoupled_st_gumbel gumbel_rao relaxed_top_k relaxed_top_k_st gumbel_crf gumbel_crf_st
perturb_and_map perturb_and_parse stochastic_softmax stochastic_sparsemap perturbed_optimizer perturbed_multiplicative
spigot spigot_steps spigot_ce spigot_eg blackbox imle aimle path_quadrature
structured_attention differentiable_dp sparsemap sparsemap_marginalisation sparsemax_marginalisation top_k_sparsemax \
disarm_sb disarm_tree carms rodeo
entmax fusedmax oscarmax csparsemax csoftmax arm disarm arsm rebar relax
""".strip().splitlines()
)
"""Families by colour; within one, the marker tells them apart."""

_COLOURS = (INK, *["#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9"])
"""Those of seaborn that the colour-blind can tell apart."""

_ON_PAGES = {INK: "#808080", "#949494": "#6a51c9"}
"""On light and on dark the exact gradient is grey, and therefore nothing else is."""

_DARKEST, _LIGHTEST = 0.4, 0.6

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">")
_FILLS = ("full", "none", "left", "right", "top", "bottom")
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (1.5, 1.2), (5, 1.2, 1.2, 1.2), (8, 2, 2, 2))
"""In multiples of the width of a line."""


@dataclass(frozen=True)
class Style:
    """How an estimator is drawn: colour and marker of its family, filling of its options."""

    colour: str
    marker: str
    fill: str = "full"
    size: float = MARKER_SIZE

    @property
    def small(self) -> Style:
        """The same for the points of a line."""
        return replace(self, size=0.62 * self.size)

    @property
    def dashes(self) -> tuple[float, ...]:
        """Of a line: families of one colour differ in their dashes too."""
        return _DASHES[_MARKERS.index(self.marker) % len(_DASHES)]


def family_style(family: str) -> Style:
    """Colour and marker of a family: fixed for those of structgrad, drawn from the name for others."""
    for colour, families in zip(_COLOURS, _HUES, strict=False):
        if family in families:
            return Style(colour, _MARKERS[families.index(family)])
    digest = hashlib.blake2b(family.encode(), digest_size=4).digest()
    return Style(_COLOURS[-1], _MARKERS[digest[1] % len(_MARKERS)])


def family_colours(frame: pd.DataFrame) -> dict[str, str]:
    """A colour of its own for every family of a run.

    Families of a kind share a hue that the colour-blind can tell from the others; within it they go from dark to light.
    """
    families = list(dict.fromkeys(map(str, frame["family"].unique())))
    kinds: dict[str, list[str]] = {}
    for family in families:
        kinds.setdefault(family_style(family).colour, []).append(family)
    return {
        family: _shade(_ON_PAGES.get(hue, hue), (position + 1) / (len(same) + 1))
        for hue, same in kinds.items()
        for position, family in enumerate(same)
    }


def _shade(hue: str, place: float) -> str:
    """A hue, mixed with black where ``place`` is below one half and with white above it."""
    towards, share = (0, _DARKEST * (1 - 2 * place)) if place < 0.5 else (255, _LIGHTEST * (2 * place - 1))
    parts = (int(hue[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(part + share * (towards - part)):02x}" for part in parts)


def shown(estimator: str) -> str:
    """The name of an estimator as a figure has room for it: of one's own file or module only the class, and no more than 30 letters.

    Example:
        >>> shown("imle[lambda=2.5]"), shown("./a/long/path/mine.py:Mine[k=2]")
        ('imle[lambda=2.5]', 'Mine[k=2]')
    """
    name, bracket, options = estimator.partition("[")
    short = name.rpartition(":")[2] + bracket + options
    return short if len(short) <= _WIDEST else short[: _WIDEST - 1] + "…"


def styles(frame: pd.DataFrame) -> dict[str, Style]:
    """The style of every estimator; options of one family differ in how the marker is filled."""
    chosen: dict[str, Style] = {}
    seen: dict[str, int] = {}
    pairs = frame[["estimator", "family"]].astype(object).drop_duplicates().itertuples(index=False, name=None)
    for estimator, family in pairs:
        chosen[estimator] = replace(family_style(family), fill=_FILLS[seen.get(family, 0) % len(_FILLS)])
        seen[family] = seen.get(family, 0) + 1
    return chosen
