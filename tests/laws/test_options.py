"""Every option of every estimator, oracle and noise is read and checked by what it declares: type, range, and the sentence that says so."""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from structgrad.estimators import ESTIMATORS, NOISES, Gumbel, Noise, Normal, SmoothNoise, SumOfGamma, make_estimator, make_noise
from structgrad.oracles import ORACLES, make_oracle
from structgrad.oracles.options import declared
from structgrad.reports.cli import app
from tests.covering import sampled

NAN, INF = math.nan, math.inf


def integer(least: int, most: float = INF) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def real(within: Callable[[Any], bool] = lambda _: True, *, infinite: bool = False) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and (infinite or math.isfinite(value)) and within(value)


def one_of(*names: str) -> Callable[[Any], bool]:
    return lambda value: type(value) is str and value in names


KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "an integer >= 1": (integer(1), "chunk inner_steps k limit num_conditionals num_pairs num_samples pilots"),
    "an integer >= 2, the others are the baseline": (
        integer(2),
        "rloo.num_samples double_cv.num_samples carms.num_samples rodeo.num_samples step_leave_one_out.num_samples",
    ),
    "an integer >= 2, a variance is taken over them": (integer(2), "vargrad.num_samples"),
    "an integer >= 1 and <= 200": (integer(1, 200), "terms"),
    "an integer >= 1, or None": (lambda value: value is None or integer(1)(value), "most"),
    "true or false": (
        lambda value: type(value) is bool,
        "baseline centre centred divide_by_lambda magnitudes normalise normalised per_part single_root symmetric with_loss",
    ),
    "a finite number": (real(), "alpha beta eta mean value"),
    "a finite number > 0": (
        real(lambda value: value > 0),
        "backward_temperature forward_temperature lambda scale sigma step_size strength target temperature sum_of_gamma.k",
    ),
    "a finite number >= 0": (real(lambda value: value >= 0), "nonzeros regression_weight variance aimle.beta"),
    "a finite number >= 1": (real(lambda value: value >= 1), "entmax.alpha reinmax.temperature"),
    "a finite number >= 0 and < 1": (real(lambda value: 0 <= value < 1), "decay"),
    "a finite number > 0 and <= 1": (real(lambda value: 0 < value <= 1), "upper"),
    "a finite number > 0 and < 1": (real(lambda value: 0 < value < 1), "clip"),
    "a number > 0 or inf": (real(lambda value: value > 0, infinite=True), "max_norm"),
    "a finite number >= 0, or 'p'": (lambda value: one_of("p")(value) or real(lambda number: number >= 0)(value), "gap"),
    "a tuple, each a finite number": (lambda value: type(value) is tuple and all(map(real(), value)), "values"),
    "a noise: gumbel, normal or sum_of_gamma": (lambda value: isinstance(value, Noise), "noise"),
    "a noise of known density: gumbel or normal": (lambda value: isinstance(value, SmoothNoise), "perturbed_optimizer.noise"),
    "a torch.nn.Module or a function, which Python alone can give, or None": (lambda value: value is None or callable(value), "module"),
    "an object of Module, or None": (lambda value: value is None or isinstance(value, torch.nn.Module), "control"),
    "'none' or 'argmax' or 'leave_one_out'": (one_of("none", "argmax", "leave_one_out"), "control_variate"),
    "'global' or 'local'": (one_of("global", "local"), "normalization"),
    "'l2' or 'entropy'": (one_of("l2", "entropy"), "omega"),
    "'midpoint' or 'gauss' or 'simpson'": (one_of("midpoint", "gauss", "simpson"), "rule"),
}
"""Values that fit, and the options: those of one name take the same everywhere, except in single entries. Written out once more, so
that a range does not change unseen."""

TEXTS: dict[str, tuple[Any, ...]] = {
    **{text: (float(text), (float(text),)) for text in ("0.5", "0.9", "2.5", "-0.1", "3.0", "1e-3", "1e3", "nan", "inf", "-inf")},
    **{text: (int(text), (int(text),)) for text in ("0", "1", "2", "3", " 4 ", "200", "201", "-1")},
    **{text: (text.lower() == "true",) for text in ("true", "True", "false", "FALSE")},
    **{text: (text,) for text in ("abc", "1x", "no", "off", "Gauss", "L2", "argmax", "local", "entropy", "simpson", "p")},
    **{"none": (None, "none"), "None": (None,), "'false'": ("false",), "'argmax'": ("argmax",), "'p'": ("p",)},
    **{"gumbel": (Gumbel(),), "normal/scale=2": (Normal(2.0),), "sum_of_gamma/k=5": (SumOfGamma(5.0),)},
    **{"(1,2.5)": ((1.0, 2.5),), "(1,nan)": ((1.0, NAN),), "(1,x)": ((1.0, "x"),)},
}
"""Texts, and what each may mean."""

VALUES = (
    *(0, 1, 2, 201, -2, 0.5, 0.9, 1.5, 2.0, -0.1, NAN, INF, -INF, True, False, None, torch.tensor(True), torch.zeros(2)),
    *("3", "1.0", "true", "abc", "gumbel", "argmax", "Gauss", "p", Gumbel(), SumOfGamma(), Gumbel, (1.0, NAN)),
)

ENTRIES: dict[str, Any] = {**ESTIMATORS, **NOISES, **ORACLES}


def kind_of(entry: str, option: str) -> str:
    each = {name: kind for kind, (_, names) in KINDS.items() for name in names.split()}
    return each.get(f"{entry}.{option}", each.get(option, ""))


EXPECTED = {name: {key.rstrip("_"): kind_of(name, key.rstrip("_")) for key in declared(entry)} for name, entry in ENTRIES.items()}


def test_the_table_is_that_of_the_declarations() -> None:
    assert {name: {key.rstrip("_"): str(kind) for key, kind in declared(entry).items()} for name, entry in ENTRIES.items()} == EXPECTED


@pytest.mark.parametrize("expected", KINDS)
def test_right_and_wrong_values_of_every_option(expected: str) -> None:
    """As text and as values. Right ones become Python's own, so that two that are equal print alike, and so have one name."""
    fits = KINDS[expected][0]
    pairs = [(entry, option) for entry, options in EXPECTED.items() for option, kind in options.items() if kind == expected]
    for entry, option in sampled(pairs, 8):
        message = "^" + re.escape(f"`{entry}` got {option}=%s; expected {expected}").replace("%s", "{}") + "$"
        for text, meanings in TEXTS.items():
            if isinstance(meanings[0], Noise) != ("noise" in expected):
                continue
            value = next((meaning for meaning in meanings if fits(meaning)), NAN)
            if value is NAN:
                with pytest.raises(ValueError, match=message.replace("{}", re.escape(text.strip()))):
                    _make(entry, option, text)
                continue
            if (option, value) == ("with_loss", False):
                continue  # asks for a module, which no text gives
            made = [_make(entry, option, text)]
            if type(value) in (int, float):
                made.append(_new(entry, option, torch.tensor(value).numpy()[()]))
            for found in (getattr(one, _field(option)) for one in made):
                assert found == pytest.approx(value) if isinstance(found, float) else found == value
                assert type(found) is (float if "number" in expected and type(value) is int else type(value))
        for bad in VALUES:
            if not fits(bad):
                with pytest.raises(ValueError, match=message.replace("{}", re.escape(repr(bad)))):
                    _new(entry, option, bad)


def test_describe_tells_default_and_what_is_taken() -> None:
    for name in sampled([name for name, options in EXPECTED.items() if options], 4):
        told = " ".join(CliRunner().invoke(app, ["describe", name]).output.split())
        for field in dataclasses.fields(ENTRIES[name]):
            option, required = field.name.rstrip("_"), field.default is dataclasses.MISSING
            default = "(required)" if required else f"= {field.default!r}"
            assert f"{option} {default} ({EXPECTED[name][option]})" in told


def _field(option: str) -> str:
    return "lambda_" if option == "lambda" else option


def _beside(entry: str, option: str) -> dict[str, Any]:
    """Other options without which some values are impossible."""
    if option in ("baseline", "control_variate"):
        return {"num_samples": 3}
    alone = {"baseline": False, "control_variate": "none"} if option == "num_samples" else {}
    return {name: value for name, value in alone.items() if name in EXPECTED[entry]}


def _make(entry: str, option: str, text: str) -> Any:
    if entry in NOISES:
        return make_noise(f"{entry}/{option}={text}")
    more = "".join(f",{name}={value}" for name, value in _beside(entry, option).items())
    return (make_oracle if entry in ORACLES else make_estimator)(f"{entry}[{option}={text}{more}]")


def _new(entry: str, option: str, value: Any) -> Any:
    return ENTRIES[entry](**{_field(option): value}, **_beside(entry, option))
