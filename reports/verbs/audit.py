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
    with sentences():
        claimed = any(given is not None for given in (objective, unbiased, scale, mean_of))
        if estimator is None and not oracle:
            raise ValueError("got neither ESTIMATOR nor --oracle NAME; expected one to test, such as: structgrad audit rloo")
        if estimator is None and claimed:
            raise ValueError(
                "got --objective, --unbiased, --scale or --mean-of without an ESTIMATOR; expected them with one, for they are its claims"
            )
        from ...suites.audit import audit as audit_estimator
        from ...suites.audit.oracles import audit_oracle
        from .. import audit as screen
        from .. import terminal
        from .run import launch

        launch.pin_threads()
        limits: dict[str, Any] = {"alpha": alpha, "seed": seed, "quick": quick, "seconds": time}
        found: list[Any] = []
        if estimator is None:
            found = [audit_oracle(name, **limits) for name in oracle]
        else:
            claims: dict[str, Any] = {"objective": objective, "unbiased": unbiased, "scale": scale, "mean_of": mean_of}
            found = [audit_estimator(estimator, structures=tuple(oracle), **claims, **limits)]
        if as_json:
            records = [screen.as_record(one, strict=strict) for one in found]
            typer.echo(json.dumps(records[0] if estimator else records, indent=2, allow_nan=False, ensure_ascii=False))
        for one in () if as_json else found:
            terminal.console().print(screen.as_text(one))
    raise typer.Exit(max((one.exit_code(strict=strict) for one in found), key=[0, 4, 3, 1].index))
