"""Colours and shapes of estimators on charts: families of one package share a hue."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

GREY = "#808080"
"""The colour of the exact gradient, and of no other estimator."""

_HUES = {
    **{"score_function": 0.69, "relaxations": 0.78, "perturbation": 0.86, "argmax_differences": 0.96},
    **{"straight_through": 0.05, "identity": 0.05, "factorised": 0.16, "policies": 0.35, "": 0.52},
}
"""Hues of HUSL by package of the estimator, and of all other ones."""

_LIGHTNESS = (0.45, 0.6)
"""Between these, every hue of HUSL has a contrast of at least 3 : 1 on a white page and on a dark one."""

_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")


def looks(frame: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """A colour of its own and a shape of Vega-Lite for every estimator of a run.

    Within a hue, estimators go from dark to light and have different shapes.
    """
    import seaborn as sns

    from ...estimators import ESTIMATORS

    kinds: dict[float | None, list[str]] = {}
    for estimator, family in frame[["estimator", "family"]].drop_duplicates("estimator").astype(str).itertuples(index=False, name=None):
        package = ESTIMATORS[family].__module__.split(".")[2] if family in ESTIMATORS else ""
        kinds.setdefault(None if package == "exact" else _HUES.get(package, _HUES[""]), []).append(estimator)
    found, (dark, light) = {}, _LIGHTNESS
    for number, (hue, same) in enumerate(kinds.items()):
        for position, estimator in enumerate(same):
            lightness = dark + (light - dark) * position / max(len(same) - 1, 1)
            colour = GREY if hue is None else sns.husl_palette(1, h=hue, s=0.95, l=lightness).as_hex()[0]
            found[estimator] = (colour, _SHAPES[(number + position) % len(_SHAPES)])
    return found


def short_name(estimator: str) -> str:
    """The name of an estimator for a figure: the class of your own file or module, and at most 30 letters.

    Example:
        >>> short_name("imle[lambda=2.5]"), short_name("./a/long/path/mine.py:Mine[k=2]")
        ('imle[lambda=2.5]', 'Mine[k=2]')
    """
    name, bracket, options = estimator.partition("[")
    short = name.rpartition(":")[2] + bracket + options
    return short if len(short) <= 30 else short[:29] + "…"
