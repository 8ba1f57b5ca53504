"""Styles of estimators: a colour and a shape each; families of a kind share a hue."""

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

_COLOURS = (INK, *["#0173b2", "#b28600", "#028e66", "#dc4413", "#c05fd0", "#8a5a3c", "#d6336c", "#6f63e0", "#6f8500", "#1f93a8"])
"""Colours of lines and marks, with a contrast of at least 3 : 1 on a white page and on a dark one."""

_GREY = "#808080"
"""The colour of the exact gradient on pages, and of no other estimator."""

_BRIGHTNESS = (0.135, 0.285)
"""Relative luminances within which a colour has a contrast of 3 : 1 on both backgrounds."""

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


def looks(frame: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """A colour of its own and a shape (of Vega-Lite) for every estimator of a run.

    Families of a kind share a hue. Within it, estimators go from dark to light and have different shapes.
    """
    kinds: dict[str, list[str]] = {}
    for estimator, family in frame[["estimator", "family"]].astype(str).drop_duplicates("estimator").itertuples(index=False, name=None):
        kinds.setdefault(family_style(family).colour, []).append(estimator)
    return {
        estimator: (
            _GREY if hue == INK else hue if len(same) == 1 else _shade(hue, position / (len(same) - 1)),
            _SHAPES[(number + position) % len(_SHAPES)],
        )
        for number, (hue, same) in enumerate(kinds.items())
        for position, estimator in enumerate(same)
    }


_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")


def _shade(hue: str, place: float) -> str:
    """A hue, mixed with black or white until its luminance lies at ``place`` (0 to 1) between those that both backgrounds allow."""
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
    """The style of every estimator: the colour of `looks`, the marker of its family, and a filling for its options."""
    chosen: dict[str, Style] = {}
    seen: dict[str, int] = {}
    pairs = frame[["estimator", "family"]].astype(object).drop_duplicates().itertuples(index=False, name=None)
    colours = looks(frame)
    for estimator, family in pairs:
        colour = colours[estimator][0]
        fill = _FILLS[seen.get(family, 0) % len(_FILLS)]
        chosen[estimator] = replace(family_style(family), colour=INK if colour == _GREY else colour, fill=fill)
        seen[family] = seen.get(family, 0) + 1
    return chosen
