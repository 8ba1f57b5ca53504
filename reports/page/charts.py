"""The charts of a page in Vega-Lite, made by Altair; the page adds their rows and replaces words that begin with ``@``.

Charts of gradients draw a mark in the colour and shape of its row, fade all but the ``picked`` estimator, and show its numbers under the
pointer. Charts of training have a legend, which fades all but the chosen estimators.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt

Kind = Literal["linear", "log"]
_KINDS: tuple[Kind, ...] = ("linear", "log")
_DETAIL = alt.Detail("estimator:N")


@functools.cache
def specs() -> dict[str, dict[str, Any]]:
    """The charts of gradients by name, as Vega-Lite's JSON, without data.

    Example:
        >>> sorted(specs())[:3]
        ['error', 'levels', 'plane']
    """
    found = {"plane": _plane(), "error": _error(), "levels": _levels()}
    found |= {f"ranking-{kind}": _ranking(kind) for kind in _KINDS}
    found |= {f"sweep-{across}-{along}": _sweep(across, along) for across in _KINDS for along in _KINDS}
    return {name: _plain(chart) for name, chart in found.items()}


def _plain(chart: Any) -> dict[str, Any]:
    """A page names no address, not even that of a schema."""
    return {key: value for key, value in chart.to_dict().items() if key not in ("$schema", "config")}


def _chart(data: str = "rows") -> alt.Chart:
    return alt.Chart(alt.NamedData(data))


def _look(opacity: float = 0.95, faded: float = 0.12, *, shape: bool = False) -> dict[str, Any]:
    """Colour, shape and opacity: all but the picked estimator fade."""
    colour = alt.Color("colour:N", scale=None, legend=None)
    shown = alt.condition("picked == '' || datum.estimator == picked", alt.value(opacity), alt.value(faded))
    return {"color": colour, "opacity": shown, **({"shape": alt.Shape("shape:N", scale=None, legend=None)} if shape else {})}


def _tooltip(*more: tuple[str, str]) -> list[alt.Tooltip]:
    """The estimator, the problem, and numbers that the page has formatted."""
    pairs = (("estimator", "estimator"), ("problem", "problem"), ("level", "entropy level"), ("loss", "loss"), *more)
    return [alt.Tooltip(f"{field}:N", title=title) for field, title in (*pairs, ("n", "instances"), ("replicates",) * 2, ("seed",) * 2)]


def _scale(kind: Kind) -> alt.Scale:
    return alt.Scale(type=kind, nice=False) if kind == "log" else alt.Scale(zero=False)


def _framed(*layers: alt.Chart, height: int) -> Any:
    fitting = alt.AutoSizeParams(type="fit-x", contains="padding")
    chart: Any = alt.layer(*layers).add_params(alt.param(name="picked", value=""))
    return chart.properties(width="container", height=height, autosize=fitting)


def _ranking(kind: Kind) -> Any:
    """The score of every estimator with its interval, the best on top; the page makes it as high as it has rows."""
    scale, told = _scale(kind), _tooltip(("shown", "@score"), ("standing", "@standing"))
    base = _chart().encode(y=alt.Y("estimator:N", sort=None, title=None, axis=alt.Axis(labelLimit=210)), tooltip=told)
    x = alt.X("low:Q", scale=scale, title="@axis", axis=alt.Axis(tickCount=6))
    bars = base.mark_rule(strokeWidth=3).encode(x=x, x2="high:Q", **_look())
    points = base.mark_point(filled=True, size=90).encode(x=alt.X("score:Q", scale=scale), **_look(shape=True))
    return _framed(bars, points, height=300)


def _plane() -> Any:
    """Bias against variance; a hollow mark is an upper bound of the bias. The page adds the names."""

    def scaled(zero: str) -> dict[str, Any]:
        """A logarithmic axis that begins with 0."""
        label = f"datum.value <= {zero} * 1.001 ? '0' : format(datum.value, '~g')"
        axis = alt.Axis(labelExpr=label, tickCount=7, labelOverlap="greedy")
        return {"scale": alt.Scale(type="log", nice=False, domainMin=alt.ExprRef(zero)), "axis": axis}

    x = alt.X("x:Q", title="relative bias b, lower is better", **scaled("xzero"))
    y = alt.Y("y:Q", title="relative variance V, lower is better", **scaled("yzero"))
    names = {"bias": "relative bias", "gain": "gain", "orthogonal": "orthogonal bias", "cosine": "cosine"}
    names |= {"variance": "relative variance", "mse": "relative MSE"}
    told = _tooltip(*((f"{name}_shown", title) for name, title in names.items()), ("verdict", "test for bias"))
    base = _chart()
    across = base.mark_rule().encode(x=alt.X("x_low:Q"), x2="x_high:Q", y=y, **_look())
    along = base.mark_rule().encode(x=x, y=alt.Y("y_low:Q"), y2="y_high:Q", **_look())
    filled = {
        "stroke": alt.Stroke("colour:N", scale=None, legend=None),
        "fillOpacity": alt.condition("datum.bound", alt.value(0), alt.value(1)),
    }
    points = base.mark_point(filled=True, size=110, strokeWidth=2).encode(x=x, y=y, tooltip=told, **filled, **_look(shape=True))
    return _framed(across, along, points, height=400).add_params(*(alt.param(name=name, value=1e-6) for name in ("xzero", "yzero")))


def _error() -> Any:
    """The error of an average against its cost: a band between quartiles, and a large mark at one estimate."""
    log = alt.Scale(type="log", nice=False)
    base = _chart().encode(x=alt.X("cost:Q", scale=log, title="@cost"))
    y, size = alt.Y("error:Q", scale=log), alt.condition("datum.estimates == 1", alt.value(90), alt.value(16))
    low = alt.Y("low:Q", scale=log, title="@error")
    band = base.mark_area(line=False).encode(y=low, y2="high:Q", detail=_DETAIL, **_band())
    lines = base.mark_line(strokeWidth=2).encode(y=y, detail=_DETAIL, **_look())
    told = _tooltip(("shown", "@error"), ("cost_shown", "@cost"), ("estimates", "estimates averaged"))
    return _framed(band, lines, base.mark_point(filled=True).encode(y=y, size=size, tooltip=told, **_look(shape=True)), height=380)


def _band() -> dict[str, Any]:
    chosen = alt.condition("datum.estimator == picked", alt.value(0.35), alt.value(0.08))
    return {**_look(), "opacity": chosen}


def _levels() -> Any:
    """A metric against the entropy level, from early to late in training."""
    x = alt.X("level:O", sort=None, title="@levels", axis=alt.Axis(labelAngle=0), scale=alt.Scale(padding=0.2))
    base = _chart().encode(x=x, y=alt.Y("value:Q", title="@metric", scale=alt.Scale(zero=False)))
    points = base.mark_point(filled=True, size=70).encode(tooltip=_tooltip(("shown", "@metric")), **_look(shape=True))
    return _framed(base.mark_line(strokeWidth=2).encode(detail=_DETAIL, **_look()), points, height=380)


def _sweep(across: Kind, along: Kind) -> Any:
    """A metric against a varied size, with a band between quartiles."""
    scale, vertical = _scale(across), _scale(along)
    base = _chart().encode(x=alt.X("size:Q", scale=scale, title="@axis"))
    low, y = alt.Y("lower:Q", scale=vertical, title="@metric"), alt.Y("median:Q", scale=vertical)
    band = base.mark_area().encode(y=low, y2="upper:Q", detail=_DETAIL, **_band())
    lines = base.mark_line(strokeWidth=2).encode(y=y, detail=_DETAIL, **_look())
    told = _tooltip(("shown", "@metric"), ("size", "@axis"))
    return _framed(band, lines, base.mark_point(filled=True, size=40).encode(y=y, tooltip=told, **_look(shape=True)), height=360)


# Charts of training.


def training_specs(names: Sequence[str], colours: Mapping[str, str], metrics: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The charts of training by the name of their rows; see `LearningSection.charts`.

    Args:
        names: the estimators.
        colours: of each estimator.
        metrics: the labels of numbers of the gradient; the first is shown at first.
    """
    picked = alt.selection_point(name="estimators", fields=["estimator"], bind="legend")
    scale = alt.Scale(domain=list(names), range=[colours[name] for name in names])
    colour = alt.Color("estimator:N", scale=scale, legend=alt.Legend(title=None, symbolLimit=0, labelLimit=170))
    shown, faint = (alt.condition(picked, alt.value(opacity), alt.value(0.04)) for opacity in (0.85, 0.08))
    unit = alt.Scale(zero=False)

    def told(*numbers: str) -> list[alt.Tooltip]:
        return [alt.Tooltip("estimator:N"), *(alt.Tooltip(f"{name}:Q", format=".3~g") for name in numbers)]

    def line(x: str, across: str, y: str, along: str, **mark: Any) -> list[alt.Chart]:
        """Lines of estimators, with bands if their rows have bounds."""
        base = alt.Chart().encode(x=alt.X(f"{x}:Q", title=across), color=colour)
        area = base.mark_area(line=False).encode(y=alt.Y("low:Q", title=along), y2="high:Q", opacity=faint)
        lines = base.mark_line(**mark).encode(y=alt.Y(f"{y}:Q", title=along, scale=unit), opacity=shown, tooltip=told(x, y))
        return [lines] if mark else [area, lines]

    def layered(name: str, layers: Sequence[alt.Chart], *params: Any) -> Any:
        return alt.layer(*layers, data=alt.NamedData(f"learning-{name}")).add_params(picked, *params)

    def panels(name: str, layers: Sequence[alt.Chart], *params: Any) -> Any:
        chart = layered(name, layers, *params).properties(width=250, height=220)
        return chart.facet(alt.Facet("task:N", title=None, sort=None), columns=3).resolve_scale(x="independent", y="independent")

    axis = alt.param(name="across", value="steps", bind=alt.binding_select(options=["steps", "seconds"], name="horizontal axis "))
    curves = line("x", "steps or seconds", "mean", "accuracy")
    across = "across == 'seconds' ? datum.seconds : datum.step"
    limits = [alt.Chart().mark_rule(strokeDash=[2, 3]).encode(y=f"mean({name}):Q", opacity=alt.value(0.6)) for name in ("floor", "ceiling")]
    metric = alt.param(
        name="metric", value=metrics[0] if metrics else "", bind=alt.binding_select(options=list(metrics), name="horizontal axis ")
    )
    base = alt.Chart().transform_filter("datum.metric == metric").encode(x=alt.X("x:Q", title="see above", scale=unit), color=colour)
    shape = alt.Shape("objective:N", legend=alt.Legend(title="objective"))
    filled = alt.condition("datum.kind == 'stochastic'", alt.value(1), alt.value(0))
    marks = base.mark_point(filled=True, size=70, strokeWidth=2).encode(
        y=alt.Y("accuracy:Q", scale=unit),
        shape=shape,
        fillOpacity=filled,
        stroke=alt.Stroke("estimator:N", scale=scale, legend=None),
        opacity=shown,
        tooltip=[*told("x", "accuracy"), alt.Tooltip("objective:N"), alt.Tooltip("kind:N")],
    )
    bars = base.mark_rule().encode(y=alt.Y("low:Q", title="final accuracy", scale=unit), y2="high:Q", opacity=shown)
    survival = line("step", "steps", "share", "share of seeds below the target", interpolate="step-after")
    profile = line("accuracy", "normalised accuracy", "share", "share of runs with at least that")
    ranked = alt.Chart().encode(y=alt.Y("estimator:N", sort=None, title=None, axis=alt.Axis(labelLimit=210)), color=colour, opacity=shown)
    probability = alt.X("low:Q", title="probability of a higher accuracy than rloo", scale=alt.Scale(domain=[0, 1]))
    dots = ranked.mark_point(filled=True, size=80).encode(x="probability:Q", tooltip=told("probability"))
    ranking = [ranked.mark_rule(strokeWidth=3).encode(x=probability, x2="high:Q"), dots]
    found = {
        "curves": panels("curves", [one.transform_calculate(x=across) for one in curves] + limits, axis),
        "points": panels("points", [bars, marks], metric),
        "survival": panels("survival", survival),
        "profile": layered("profile", profile).properties(width=520, height=300),
        "improvement": layered("improvement", ranking).properties(width=420),
    }
    return {f"learning-{name}": _plain(chart) for name, chart in found.items()}
