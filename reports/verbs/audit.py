"""``structgrad audit``: test an estimator or an oracle."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from .outcome import sentences

_FUNCTION = "Declared properties, if ESTIMATOR is a function"


def audit(  # noqa: PLR0913 - one parameter per option
    estimator: Annotated[
        str | None,
        typer.Argument(
            help=r"module:Name, ./file.py:Name or a registered name, with options in brackets: './mine.py:Mine\[num_samples=2]'.",
            metavar="[ESTIMATOR]",
            show_default=False,
        ),
    ] = None,
    *,
    objective: Annotated[
        str | None,
        typer.Option(
            help="Objective of the estimator: expected, perturbed, relaxed, sparse or argmax.",
            metavar="NAME",
            rich_help_panel=_FUNCTION,
            show_default="expected",
        ),
    ] = None,
    unbiased: Annotated[
        bool | None,
        typer.Option(
            "--unbiased/--biased", help="Declare the estimator unbiased or biased.", rich_help_panel=_FUNCTION, show_default="unbiased"
        ),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            help="Declared ratio of the mean estimate to the gradient.", metavar="NUMBER", rich_help_panel=_FUNCTION, show_default="1"
        ),
    ] = None,
    mean_of: Annotated[
        str | None,
        typer.Option(help="Estimator that must have the same mean, such as st_gumbel.", metavar="ESTIMATOR", show_default=False),
    ] = None,
    oracle: Annotated[
        list[str],
        typer.Option(
            "--oracle",
            "-o",
            help=r"Structure for the tests, such as './mine.py:Mine\[n=4]'. Without ESTIMATOR, this structure itself is tested. "
            "Repeatable.",
            metavar="NAME",
            show_default="all supported structures",
        ),
    ] = [],  # noqa: B006 - typer copies it
    alpha: Annotated[
        float, typer.Option(help="Error rate of the whole audit: the probability that a correct estimator fails.", metavar="NUMBER")
    ] = 1e-3,
    seed: Annotated[int, typer.Option(help="Random seed.", metavar="N")] = 0,
    time: Annotated[float, typer.Option(help="No new test starts after this many seconds.", metavar="SECONDS", min=0)] = 60.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer structures and replicates; for an oracle, one event and few scores.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 if a test is undecided.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Test an estimator on small structures: shapes, randomness, batching, and whether its mean equals the exact gradient.

    ESTIMATOR is an estimator, its class, or a function (loss, oracle, scores, generator) that returns estimates shaped like the scores.

    With --oracle NAME and no ESTIMATOR, test every operation of the oracle against an enumeration of all structures.

    Exit codes: 0 no violation, 1 a violation (of the estimates or of the declared properties), 2 bad input, 3 the estimator raised,
    4 undecided under --strict.
    """
    if estimator is None:
        of_estimators = (objective, unbiased, scale, mean_of)
        claimed = any(given is not None for given in of_estimators)
        code = _oracles(oracle, of_estimators=claimed, strict=strict, as_json=as_json, alpha=alpha, seed=seed, quick=quick, seconds=time)
        raise typer.Exit(code)
    with sentences():
        from ...suites.audit import audit as examine
        from .. import terminal
        from ..audit import terminal as screen
        from .run import launch

        launch.pin_threads()
        found = examine(
            estimator,
            objective=objective,
            unbiased=unbiased,
            scale=scale,
            mean_of=mean_of,
            structures=tuple(oracle),
            alpha=alpha,
            seed=seed,
            quick=quick,
            seconds=time,
        )
        if as_json:
            typer.echo(json.dumps(screen.as_record(found, strict=strict), indent=2, allow_nan=False, ensure_ascii=False))
        else:
            terminal.console().print(screen.as_text(found))
    raise typer.Exit(found.exit_code(strict=strict))


def _oracles(names: list[str], *, of_estimators: bool, strict: bool, as_json: bool, **options: Any) -> int:
    """Audit oracles one after the other; the exit code of the worst."""
    with sentences():
        if not names:
            raise ValueError("got neither ESTIMATOR nor --oracle NAME; expected one to test, such as: structgrad audit rloo")
        if of_estimators:
            raise ValueError(
                "got --objective, --unbiased, --scale or --mean-of without an ESTIMATOR; expected them with one, for they are its claims"
            )
        from ...suites.audit.oracles import audit_oracle
        from .. import terminal
        from ..audit import oracles as screen
        from .run import launch

        launch.pin_threads()
        found = [audit_oracle(name, **options) for name in names]
        if as_json:
            typer.echo(json.dumps([screen.as_record(one, strict=strict) for one in found], indent=2, allow_nan=False, ensure_ascii=False))
        else:
            for one in found:
                terminal.console().print(screen.as_text(one))
    return max((one.exit_code(strict=strict) for one in found), key=[0, 4, 3, 1].index)
