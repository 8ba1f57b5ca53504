"""The charts of a page in Vega-Lite, made by Altair; the page gives them their rows, and what ``@…`` stands for.

Every chart draws a mark in the colour and shape of its row's family, fades all but the ``picked`` estimator, and shows the numbers of the
mark under the pointer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    import altair as alt

_ROWS = "rows"

Kind = Literal["linear", "log"]


def specs() -> dict[str, dict[str, Any]]:
    """The charts by name, as Vega-Lite's JSON, without data."""
    return {name: _without_address(make().to_dict()) for name, make in _CHARTS.items()}


def _without_address(spec: dict[str, Any]) -> dict[str, Any]:
    """A page names no address, not even that of a schema."""
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}


def _chart(data: str = _ROWS) -> alt.Chart:
    import altair as alt

    return alt.Chart(alt.NamedData(data))


def _colour() -> dict[str, Any]:
    """Colour and opacity: all but the picked estimator fades."""
    import altair as alt

    return {
        "color": alt.Color("colour:N", scale=None, legend=None),
        "opacity": alt.condition("picked == '' || datum.estimator == picked", alt.value(0.95), alt.value(0.12)),
    }


def _shape() -> dict[str, Any]:
    import altair as alt

    return {"shape": alt.Shape("shape:N", scale=None, legend=None), **_colour()}


def _tooltip(*more: tuple[str, str]) -> list[alt.Tooltip]:
    """The estimator, the problem, and numbers that the page has formatted."""
    import altair as alt

    pairs = (("estimator", "estimator"), ("problem", "problem"), ("level", "entropy level"), ("loss", "loss"), *more)
    pairs = (*pairs, ("n", "instances"), ("replicates", "replicates"), ("seed", "seed"))
    return [alt.Tooltip(f"{field}:N", title=title) for field, title in pairs]


def _scale(kind: Kind) -> alt.Scale:
    """An axis that ends where its numbers do; on a logarithmic one there is no 0 to leave out."""
    import altair as alt

    return alt.Scale(type=kind, nice=False) if kind == "log" else alt.Scale(zero=False)


def _framed(*layers: alt.Chart, height: int) -> alt.LayerChart:
    import altair as alt

    return (
        cast("alt.LayerChart", alt.layer(*layers))
        .add_params(alt.param(name="picked", value=""))
        .properties(width="container", height=height, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    )


def _ranking(kind: Kind) -> alt.LayerChart:
    """The score of every estimator with its interval, the best on top; the page makes it as high as it has rows."""
    import altair as alt

    y = alt.Y("estimator:N", sort=None, title=None, axis=alt.Axis(labelLimit=210))
    scale = _scale(kind)
    base = _chart()
    told = _tooltip(("shown", "@score"), ("standing", "@standing"))
    bars = base.mark_rule(strokeWidth=3).encode(
        x=alt.X("low:Q", scale=scale, title="@axis", axis=alt.Axis(tickCount=6)), x2="high:Q", y=y, tooltip=told, **_colour()
    )
    points = base.mark_point(filled=True, size=90).encode(x=alt.X("score:Q", scale=scale), y=y, tooltip=told, **_shape())
    return _framed(bars, points, height=300)


def _plane() -> alt.LayerChart:
    """Bias against variance; a hollow mark is an upper bound of the bias. The page adds the names."""
    import altair as alt

    def scaled(zero: str) -> dict[str, Any]:
        """A logarithmic axis that begins with 0."""
        label = f"datum.value <= {zero} * 1.001 ? '0' : format(datum.value, '~g')"
        return {
            "scale": alt.Scale(type="log", nice=False, domainMin=alt.ExprRef(zero)),
            "axis": alt.Axis(labelExpr=label, tickCount=7, labelOverlap="greedy"),
        }

    base = _chart()
    x = alt.X("x:Q", title="relative bias b, less is better", **scaled("xzero"))
    y = alt.Y("y:Q", title="relative variance V, less is better", **scaled("yzero"))
    told = _tooltip(
        ("bias_shown", "relative bias"),
        ("gain_shown", "gain"),
        ("orthogonal_shown", "orthogonal bias"),
        ("cosine_shown", "cosine"),
        ("variance_shown", "relative variance"),
        ("mse_shown", "relative MSE"),
        ("verdict", "test for bias"),
    )
    across = base.mark_rule().encode(x=alt.X("x_low:Q"), x2="x_high:Q", y=y, **_colour())
    along = base.mark_rule().encode(x=x, y=alt.Y("y_low:Q"), y2="y_high:Q", **_colour())
    hollow = alt.condition("datum.bound", alt.value(0), alt.value(1))
    points = base.mark_point(filled=True, size=110, strokeWidth=2).encode(
        x=x, y=y, tooltip=told, stroke=alt.Stroke("colour:N", scale=None, legend=None), fillOpacity=hollow, **_shape()
    )
    zeros = [alt.param(name=name, value=1e-6) for name in ("xzero", "yzero")]
    return _framed(across, along, points, height=400).add_params(*zeros)


def _error() -> alt.LayerChart:
    """The error of an average against its cost: a band between quartiles, and a large mark at one estimate."""
    import altair as alt

    log = alt.Scale(type="log", nice=False)
    base = _chart()
    x, detail = alt.X("cost:Q", scale=log, title="@cost"), alt.Detail("estimator:N")
    look = _colour()
    band_look = {**look, "opacity": alt.condition("datum.estimator == picked", alt.value(0.35), alt.value(0.08))}
    band = base.mark_area(line=False).encode(x=x, y=alt.Y("low:Q", scale=log, title="@error"), y2="high:Q", detail=detail, **band_look)
    lines = base.mark_line(strokeWidth=2).encode(x=x, y=alt.Y("error:Q", scale=log), detail=detail, **look)
    told = _tooltip(("shown", "@error"), ("cost_shown", "@cost"), ("estimates", "estimates averaged"))
    points = base.mark_point(filled=True).encode(
        x=x,
        y=alt.Y("error:Q", scale=log),
        size=alt.condition("datum.estimates == 1", alt.value(90), alt.value(16)),
        tooltip=told,
        **_shape(),
    )
    return _framed(band, lines, points, height=380)


def _levels() -> alt.LayerChart:
    """A metric against the entropy level, from early to late in training."""
    import altair as alt

    base, detail = _chart(), alt.Detail("estimator:N")
    x = alt.X("level:O", sort=None, title="@levels", axis=alt.Axis(labelAngle=0), scale=alt.Scale(padding=0.2))
    y = alt.Y("value:Q", title="@metric", scale=alt.Scale(zero=False))
    lines = base.mark_line(strokeWidth=2).encode(x=x, y=y, detail=detail, **_colour())
    points = base.mark_point(filled=True, size=70).encode(x=x, y=y, tooltip=_tooltip(("shown", "@metric")), **_shape())
    return _framed(lines, points, height=380)


def _sweep(across: Kind, along: Kind) -> alt.LayerChart:
    """A metric against a varied size, with a band between quartiles."""
    import altair as alt

    base = _chart()
    scale, vertical = _scale(across), _scale(along)
    x, detail, look = alt.X("size:Q", scale=scale, title="@axis"), alt.Detail("estimator:N"), _colour()
    band_look = {**look, "opacity": alt.condition("datum.estimator == picked", alt.value(0.35), alt.value(0.08))}
    band = base.mark_area().encode(x=x, y=alt.Y("lower:Q", scale=vertical, title="@metric"), y2="upper:Q", detail=detail, **band_look)
    lines = base.mark_line(strokeWidth=2).encode(x=x, y=alt.Y("median:Q", scale=vertical), detail=detail, **look)
    points = base.mark_point(filled=True, size=40).encode(
        x=x, y=alt.Y("median:Q", scale=vertical), tooltip=_tooltip(("shown", "@metric"), ("size", "@axis")), **_shape()
    )
    return _framed(band, lines, points, height=360)


_KINDS: tuple[Kind, ...] = ("linear", "log")
_CHARTS: dict[str, Callable[[], alt.LayerChart]] = {
    "plane": _plane,
    "error": _error,
    "levels": _levels,
    **{f"ranking-{kind}": partial(_ranking, kind) for kind in _KINDS},
    **{f"sweep-{across}-{along}": partial(_sweep, across, along) for across in _KINDS for along in _KINDS},
}
