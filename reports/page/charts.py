"""The charts of a page in Vega-Lite, made by Altair; the page adds their rows and replaces words that begin with ``@``.

Charts of gradients draw a mark in the colour and shape of its row. They fade all but the ``picked`` estimator, and show its numbers under
the pointer. Charts of training have a legend, which fades all but the chosen estimators.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt

Kind = Literal["linear", "log"]
_KINDS: tuple[Kind, ...] = ("linear", "log")
_COLOUR = alt.Color("colour:N", scale=None, legend=None)
_SHAPE = alt.Shape("shape:N", scale=None, legend=None)
_LINE: dict[str, Any] = {"detail": alt.Detail("estimator:N"), "tooltip": alt.value(None)}
"""A line or a band has no number of its own to show under the pointer."""


@functools.cache
def specs() -> dict[str, dict[str, Any]]:
    """The charts of gradients by name, as Vega-Lite's JSON, without data."""
    found = {"plane": _plane(), "error": _error(), "levels": _levels()}
    found |= {f"ranking-{kind}": _ranking(kind) for kind in _KINDS}
    for across, along in itertools.product(_KINDS, _KINDS):  # a metric against a varied size
        base = _chart(("shown", "@metric"), ("size", "@axis"), x=alt.X("size:Q", scale=_scale(across), title="@axis"))
        found[f"sweep-{across}-{along}"] = _banded(base, _scale(along), "@metric", ("lower", "median", "upper"), 360)
    return {name: _plain(chart) for name, chart in found.items()}


def _plain(chart: Any) -> dict[str, Any]:
    """A page names no address, not even that of a schema."""
    return {key: value for key, value in chart.to_dict().items() if key not in ("$schema", "config")}


def _chart(*tooltip: tuple[str, str], **channels: Any) -> alt.Chart:
    """A chart of marks that fade unless they are picked, with the numbers that the page has formatted under the pointer."""
    pairs = (("estimator", "estimator"), ("problem", "problem"), ("level", "entropy level"), ("loss", "loss"), *tooltip)
    pairs = (*pairs, ("n", "instances"), *((name, name) for name in ("replicates", "seed")))
    tooltips = [alt.Tooltip(f"{field}:N", title=title) for field, title in pairs]
    opacity = alt.condition("picked == '' || datum.estimator == picked", alt.value(0.95), alt.value(0.12))
    return alt.Chart(alt.NamedData("rows")).encode(color=_COLOUR, opacity=opacity, tooltip=tooltips, **channels)


def _scale(kind: Kind) -> alt.Scale:
    return alt.Scale(type=kind, nice=False) if kind == "log" else alt.Scale(zero=False)


def _framed(*layers: alt.Chart, height: int) -> Any:
    fitting = alt.AutoSizeParams(type="fit-x", contains="padding")
    chart: Any = alt.layer(*layers).add_params(alt.param(name="picked", value=""))
    return chart.properties(width="container", height=height, autosize=fitting)


def _banded(base: alt.Chart, scale: alt.Scale, title: str, ends: tuple[str, str, str], height: int, **mark: Any) -> Any:
    """Lines of estimators with bands between two ends, and marks."""
    low, middle, high = ends
    chosen = alt.condition("datum.estimator == picked", alt.value(0.35), alt.value(0.08))
    band = base.mark_area(line=False).encode(y=alt.Y(f"{low}:Q", scale=scale, title=title), y2=f"{high}:Q", opacity=chosen, **_LINE)
    lines = base.mark_line(strokeWidth=2).encode(y=alt.Y(f"{middle}:Q", scale=scale), **_LINE)
    points = base.mark_point(filled=True, size=40).encode(y=alt.Y(f"{middle}:Q", scale=scale), shape=_SHAPE, **mark)
    return _framed(band, lines, points, height=height)


def _ranking(kind: Kind) -> Any:
    """The score of every estimator with its interval, the best on top; the page makes it as high as it has rows."""
    y = alt.Y("estimator:N", sort=None, title=None, axis=alt.Axis(labelLimit=210))
    base, scale = _chart(("shown", "@score"), ("standing", "@standing"), y=y), _scale(kind)
    x = alt.X("low:Q", scale=scale, title="@axis", axis=alt.Axis(tickCount=6))
    bars = base.mark_rule(strokeWidth=3).encode(x=x, x2="high:Q")
    return _framed(bars, base.mark_point(filled=True, size=90).encode(x=alt.X("score:Q", scale=scale), shape=_SHAPE), height=300)


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
    base = _chart(*((f"{name}_shown", title) for name, title in names.items()), ("verdict", "test for bias"))
    across = base.mark_rule().encode(x=alt.X("x_low:Q"), x2="x_high:Q", y=y)
    along = base.mark_rule().encode(x=x, y=alt.Y("y_low:Q"), y2="y_high:Q")
    points = base.mark_point(filled=True, size=110, strokeWidth=2).encode(
        x=x,
        y=y,
        shape=_SHAPE,
        stroke=alt.Stroke("colour:N", scale=None, legend=None),
        fillOpacity=alt.condition("datum.bound", alt.value(0), alt.value(1)),
    )
    return _framed(across, along, points, height=400).add_params(*(alt.param(name=name, value=1e-6) for name in ("xzero", "yzero")))


def _error() -> Any:
    """The error of an average against its cost: a band between quartiles, and a large mark at one estimate."""
    log = alt.Scale(type="log", nice=False)
    shown = (("shown", "@error"), ("cost_shown", "@cost"), ("estimates", "estimates averaged"))
    base = _chart(*shown, x=alt.X("cost:Q", scale=log, title="@cost"))
    size = alt.condition("datum.estimates == 1", alt.value(90), alt.value(16))
    return _banded(base, log, "@error", ("low", "error", "high"), 380, size=size)


def _levels() -> Any:
    """A metric against the entropy level, from early to late in training."""
    x = alt.X("level:O", sort=None, title="@levels", axis=alt.Axis(labelAngle=0), scale=alt.Scale(padding=0.2))
    base = _chart(("shown", "@metric"), x=x, y=alt.Y("value:Q", title="@metric", scale=alt.Scale(zero=False)))
    lines = base.mark_line(strokeWidth=2).encode(**_LINE)
    return _framed(lines, base.mark_point(filled=True, size=70).encode(shape=_SHAPE), height=380)


def training_specs(names: Sequence[str], colours: Mapping[Any, str], metrics: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The charts of training by the name of their rows, a panel per task; the first of the labels of metrics is shown at first."""
    picked = alt.selection_point(name="estimators", fields=["estimator"], bind="legend")
    scale, unit = alt.Scale(domain=list(names), range=[colours[name] for name in names]), alt.Scale(zero=False)
    legend = alt.Legend(title=None, symbolLimit=0, labelLimit=170, symbolOpacity=1)
    shown, faint = (alt.condition(picked, alt.value(opacity), alt.value(0.04)) for opacity in (0.85, 0.08))
    base = alt.Chart().encode(color=alt.Color("estimator:N", scale=scale, legend=legend), opacity=shown)

    def panels(name: str, param: str, options: Sequence[str], *layers: alt.Chart) -> dict[str, Any]:
        menu = alt.param(name=param, value=[*options, ""][0], bind=alt.binding_select(options=list(options), name="horizontal axis "))
        chart = alt.layer(*layers, data=alt.NamedData(f"learning-{name}")).add_params(picked, menu).properties(width=250, height=220)
        return _plain(chart.facet(alt.Facet("task:N", title=None, sort=None), columns=3).resolve_scale(x="independent", y="independent"))

    def tooltips(*numbers: str) -> list[alt.Tooltip]:
        return [alt.Tooltip("estimator:N"), *(alt.Tooltip(f"{name}:Q", format=".3~g") for name in numbers)]

    curve = base.transform_calculate(x="across == 'seconds' ? datum.seconds : datum.step").encode(x=alt.X("x:Q", title="steps or seconds"))
    y, kind = alt.Y("low:Q", title="accuracy", scale=unit), alt.condition("datum.kind == 'stochastic'", alt.value(1), alt.value(0))
    point = base.transform_filter("datum.metric == metric").encode(x=alt.X("x:Q", title="see above", scale=unit))
    return {
        "learning-curves": panels(
            *("curves", "across", ["steps", "seconds"]),
            curve.mark_area(line=False).encode(y=y, y2="high:Q", opacity=faint),
            curve.mark_line().encode(y=alt.Y("mean:Q", scale=unit), tooltip=tooltips("x", "mean")),
            *(
                alt.Chart().mark_rule(strokeDash=[2, 3]).encode(y=f"mean({name}):Q", opacity=alt.value(0.6))
                for name in ("floor", "ceiling")
            ),
        ),
        "learning-points": panels(
            *("points", "metric", metrics),
            point.mark_rule().encode(y=y, y2="high:Q"),
            point.mark_point(filled=True, size=70, strokeWidth=2).encode(
                y=alt.Y("accuracy:Q", scale=unit),
                shape=alt.Shape("objective:N", legend=alt.Legend(title="objective")),
                fillOpacity=kind,
                stroke=alt.Stroke("estimator:N", scale=scale, legend=legend),
                tooltip=[*tooltips("x", "accuracy"), alt.Tooltip("objective:N"), alt.Tooltip("kind:N")],
            ),
        ),
    }
