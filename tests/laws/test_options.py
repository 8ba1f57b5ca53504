"""Every option of every estimator, oracle and noise is read and checked by what it declares: type, range, and the sentence that says so."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from structgrad.estimators import ESTIMATORS, NOISES, Gumbel, make_estimator, make_noise
from structgrad.oracles import ORACLES, make_oracle
from structgrad.oracles.options import declared
from structgrad.reports.cli import app
from tests.covering import sampled

COUNT = "an integer >= 1"
FLAG = "true or false"
POSITIVE = "a finite number > 0"
AT_LEAST_0 = "a finite number >= 0"
AT_LEAST_1 = "a finite number >= 1"
DECAY = "a finite number >= 0 and < 1"
BOUND = "a finite number > 0 and <= 1"
CLIP = "a finite number > 0 and < 1"
FINITE = "a finite number"
NOISE = "a noise: gumbel, normal or sum_of_gamma"
FUNCTION = "a torch.nn.Module or a function, which Python alone can give, or None"
PEERS = "an integer >= 2, the others are the baseline"
VARIATES = "'none' or 'argmax' or 'leave_one_out'"
NUMBERS = "a tuple, each a finite number"
SMOOTH = "a noise of known density: gumbel or normal"

KINDS = {
    COUNT: "chunk inner_steps k limit num_conditionals num_pairs num_samples pilots",
    FLAG: "baseline centre centred divide_by_lambda magnitudes normalise normalised per_part single_root symmetric with_loss",
    POSITIVE: "backward_temperature forward_temperature lambda scale sigma step_size strength target temperature",
    AT_LEAST_0: "nonzeros regression_weight variance",
    FINITE: "alpha beta eta mean value",
    DECAY: "decay",
    BOUND: "upper",
    CLIP: "clip",
    NOISE: "noise",
    FUNCTION: "module",
    VARIATES: "control_variate",
    NUMBERS: "values",
    "an object of Module, or None": "control",
    "a finite number >= 0, or 'p'": "gap",
    "a number > 0 or inf": "max_norm",
    "'global' or 'local'": "normalization",
    "'l2' or 'entropy'": "omega",
    "'midpoint' or 'gauss' or 'simpson'": "rule",
    "an integer >= 1 and <= 200": "terms",
    "an integer >= 1, or None": "most",
}
"""Options of one name take the same values everywhere. Written out once more, so that a range does not change unseen."""

EXCEPTIONS = {
    **dict.fromkeys([f"{name} num_samples" for name in ("rloo", "double_cv", "carms", "rodeo", "step_leave_one_out")], PEERS),
    "vargrad num_samples": "an integer >= 2, a variance is taken over them",
    "aimle beta": AT_LEAST_0,
    "entmax alpha": AT_LEAST_1,
    "reinmax temperature": AT_LEAST_1,
    "perturbed_optimizer noise": SMOOTH,
    "sum_of_gamma k": POSITIVE,
}

ENTRIES: dict[str, Any] = {**ESTIMATORS, **NOISES, **ORACLES}
NAN, INF = math.nan, math.inf

Cases = tuple[dict[str, Any], tuple[str, ...], tuple[Any, ...]]
CASES: dict[str, Cases] = {
    # text that is right, with what it means; text that is wrong; values that are wrong
    COUNT: ({"3": 3, " 4 ": 4}, ("0", "-1", "2.5", "3.0", "1e3", "abc", "nan", "inf", "true", "None"), (0, -2, 2.0, True, "3", None, NAN)),
    PEERS: ({"2": 2, "5": 5}, ("1", "0", "2.5", "abc", "false"), (1, 0, 2.0, True, "2", None)),
    FLAG: (
        {"true": True, "false": False, "True": True, "False": False, "FALSE": False},
        ("no", "yes", "0", "1", "off", "None", "'false'"),
        (0, 1, "false", "true", None, 0.0, torch.tensor(True)),
    ),
    POSITIVE: (
        {"2": 2.0, "0.5": 0.5, "1e-3": 1e-3},
        ("0", "-1", "nan", "inf", "abc", "true", "1x"),
        (0, 0.0, -1.0, NAN, INF, True, "1.0", None),
    ),
    AT_LEAST_0: ({"0": 0.0, "2.5": 2.5}, ("-0.1", "nan", "inf", "abc", "true"), (-0.1, NAN, INF, True, "1.0", None)),
    AT_LEAST_1: ({"1": 1.0, "2.5": 2.5}, ("0.9", "nan", "inf", "abc", "true"), (0.9, NAN, INF, True, "1.0", None)),
    DECAY: ({"0": 0.0, "0.99": 0.99}, ("1", "-0.1", "nan", "inf", "abc", "true"), (1.0, -0.1, NAN, True, "0.5", None)),
    BOUND: ({"1": 1.0, "0.2": 0.2}, ("0", "1.5", "nan", "inf", "abc", "true"), (0.0, 1.5, NAN, True, "0.5", None)),
    CLIP: ({"0.2": 0.2}, ("0", "1", "nan", "abc", "true"), (0.0, 1.0, NAN, True, "0.5", None)),
    FINITE: ({"-3": -3.0, "0": 0.0, "1e3": 1e3}, ("nan", "inf", "-inf", "abc", "true"), (NAN, INF, -INF, True, "1.0", None)),
    NOISE: (
        {"gumbel": Gumbel(), "normal/scale=2": NOISES["normal"](2.0), "sum_of_gamma/k=5": NOISES["sum_of_gamma"](5.0)},
        (),
        ("gumbel", 1.0, None, Gumbel),
    ),
    FUNCTION: ({"none": None, "None": None}, ("abc", "3"), (3, "abc", torch.zeros(2))),
    VARIATES: ({"none": "none", "argmax": "argmax", "'argmax'": "argmax"}, ("mean", "None", "3"), ("mean", None, 3)),
    "an integer >= 2, a variance is taken over them": ({"3": 3}, ("1", "abc"), (1, 2.0)),
    "an object of Module, or None": ({"none": None}, ("abc", "3"), (3, "abc", lambda z: z)),
    NUMBERS: ({"(1,2.5)": (1.0, 2.5), "3": (3.0,)}, ("abc", "(1,nan)", "(1,x)"), (1.0, "abc", (1.0, NAN), None)),
    "a finite number >= 0, or 'p'": ({"p": "p", "2": 2.0, "'p'": "p"}, ("q", "-1", "nan", "true"), ("q", -1.0, NAN, None, True)),
    SMOOTH: (
        {"gumbel": Gumbel()},
        ("sum_of_gamma", "sum_of_gamma/k=2"),
        (NOISES["sum_of_gamma"](), "gumbel", None),
    ),
    "a number > 0 or inf": ({"inf": INF, "2": 2.0}, ("0", "-1", "nan", "-inf", "abc"), (0.0, NAN, -INF, None, True, "1")),
    "'midpoint' or 'gauss' or 'simpson'": ({"gauss": "gauss", "simpson": "simpson"}, ("euler", "Gauss", "2"), ("euler", None, 2)),
    "'l2' or 'entropy'": ({"l2": "l2", "entropy": "entropy"}, ("max", "L2", "none"), ("max", None, 2)),
    "an integer >= 1 and <= 200": ({"7": 7, "200": 200}, ("0", "201", "2.5"), (0, 201, 2.5, True)),
    "an integer >= 1, or None": ({"none": None, "2": 2}, ("0", "2.5", "abc"), (0, 2.5, True, "2")),
    "'global' or 'local'": ({"global": "global", "local": "local"}, ("none", "Global", "true"), ("none", None, True)),
}


EXPECTED = {
    name: {key: EXCEPTIONS.get(f"{name} {key}", next((kind for kind, keys in KINDS.items() if key in keys.split()), "")) for key in keys}
    for name, entry in ENTRIES.items()
    if (keys := [key.rstrip("_") for key in declared(entry)])
}


def test_the_table_is_that_of_the_declarations() -> None:
    found = {name: {key.rstrip("_"): str(kind) for key, kind in declared(entry).items()} for name, entry in ENTRIES.items()}
    assert {name: options for name, options in found.items() if options} == EXPECTED


@pytest.mark.parametrize("expected", CASES)
def test_right_and_wrong_values_of_every_option(expected: str) -> None:
    """As text and as values. Right ones become Python's own, so that two that are equal print alike, and so have one name."""
    right, wrong_text, wrong = CASES[expected]
    for entry, option in [(entry, option) for entry, options in EXPECTED.items() for option, kind in options.items() if kind == expected]:
        message = "^" + re.escape(f"`{entry}` got {option}=%s; expected {expected}").replace("%s", "{}") + "$"
        for text, value in right.items():
            if (option, value) == ("with_loss", False):
                continue  # asks for a module, which no text gives
            made = [_make(entry, option, text)]
            if isinstance(value, int | float) and not isinstance(value, bool):
                made.append(_new(entry, option, torch.tensor(value).numpy()[()]))
            for found in (getattr(one, _field(option)) for one in made):
                assert found == pytest.approx(value) if isinstance(value, float) else found == value
                assert type(found) is type(value)
        for text in wrong_text:
            with pytest.raises(ValueError, match=message.replace("{}", re.escape(text.strip()))):
                _make(entry, option, text)
        for bad in wrong:
            with pytest.raises(ValueError, match=message.replace("{}", re.escape(repr(bad)))):
                _new(entry, option, bad)


def test_describe_tells_default_and_what_is_taken() -> None:
    for name in sampled([*EXPECTED], 12):
        told = " ".join(CliRunner().invoke(app, ["describe", name]).output.split())
        for field in dataclasses.fields(ENTRIES[name]):
            option, required = field.name.rstrip("_"), field.default is dataclasses.MISSING
            default = "(required)" if required else f"= {field.default!r}"
            assert f"{option} {default} ({EXPECTED[name][option]})" in told


def _field(option: str) -> str:
    return "lambda_" if option == "lambda" else option


def _make(entry: str, option: str, text: str) -> Any:
    if entry in NOISES:
        return make_noise(f"{entry}/{option}={text}")
    if entry in ORACLES:
        return make_oracle(f"{entry}[{option}={text}]")
    # Some options are possible only beside another.
    beside = ",num_samples=3" if option in ("baseline", "control_variate") else ",baseline=false" if _alone(entry, option) else ""
    return make_estimator(f"{entry}[{option}={text}{beside}]")


def _new(entry: str, option: str, value: Any) -> Any:
    return ENTRIES[entry](**{_field(option): value})


def _alone(entry: str, option: str) -> bool:
    return option == "num_samples" and "baseline" in EXPECTED[entry]
