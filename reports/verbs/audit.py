"""``structgrad audit``: is an estimator what it says?"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from .outcome import sentences

_FUNCTION = "Of a function (an estimator says it itself)"


def audit(  # noqa: PLR0913 - one parameter per option
    estimator: Annotated[
        str | None,
        typer.Argument(
            help=r"module:Name, ./file.py:Name, or a name of the registry; options in brackets: './mine.py:Mine\[num_samples=2]'.",
            metavar="[ESTIMATOR]",
            show_default=False,
        ),
    ] = None,
    *,
    objective: Annotated[
        str | None,
        typer.Option(
            help="expected, perturbed, relaxed, sparse or argmax.", metavar="NAME", rich_help_panel=_FUNCTION, show_default="expected"
        ),
    ] = None,
    unbiased: Annotated[
        bool | None,
        typer.Option("--unbiased/--biased", help="Whether it claims to be unbiased.", rich_help_panel=_FUNCTION, show_default="unbiased"),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(help="The multiple of the gradient that it gives.", metavar="NUMBER", rich_help_panel=_FUNCTION, show_default="1"),
    ] = None,
    mean_of: Annotated[
        str | None,
        typer.Option(help="Another estimator that must have the same mean, such as st_gumbel.", metavar="ESTIMATOR", show_default=False),
    ] = None,
    oracle: Annotated[
        list[str],
        typer.Option(
            "--oracle",
            "-o",
            help="A structure to audit on, such as './mine.py:Mine[n=4]'; without ESTIMATOR, what is audited itself. Repeatable.",
            metavar="NAME",
            show_default="those that the estimator serves",
        ),
    ] = [],  # noqa: B006 - typer copies it
    alpha: Annotated[float, typer.Option(help="The chance that an estimator without a fault is called wrong.", metavar="NUMBER")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Everything random comes from it.", metavar="N")] = 0,
    time: Annotated[float, typer.Option(help="Seconds after which no new test begins.", metavar="SECONDS", min=0)] = 60.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two structures, and fewer replicates; of an oracle, one event and few scores.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Leave with code 4 where something is undecided.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run the laws of estimators on small structures: right or wrong, why, and what its estimates are worth.

    With --oracle NAME and no ESTIMATOR, hold the oracle itself to all structures of small events: its rules and every operation.

    ESTIMATOR is an estimator, a class of them, or a function of loss, oracle, scores and generator that returns estimates shaped like
    the scores.

    Exit codes: 0 no violation, 1 a violation is proven (of the estimates, or of what is declared alone), 2 bad input, 3 it raised,
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
            raise ValueError("got neither an ESTIMATOR nor --oracle NAME; expected what to audit, such as: structgrad audit rloo")
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
