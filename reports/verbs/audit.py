"""``structgrad audit``: test an estimator or an oracle."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import typer

from .options import option
from .outcome import sentences

_FUNCTION = "Declared properties, if ESTIMATOR is a function"


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Options of `audit`."""

    estimator: str | None = option(None, None, "[ESTIMATOR]", shown=False)
    """module:Name, ./file.py:Name or a registered name, with options in brackets: './mine.py:Mine[num_samples=2]'."""
    objective: str | None = option(None, _FUNCTION, "NAME", shown="expected")
    """Objective of the estimator: expected, perturbed, relaxed, sparse or argmax."""
    unbiased: bool | None = option(None, _FUNCTION, None, "--unbiased/--biased", shown="unbiased")
    """Declare the estimator unbiased or biased."""
    scale: float | None = option(None, _FUNCTION, "NUMBER", shown="1")
    """Declared ratio of the mean estimate to the gradient."""
    mean_of: str | None = option(None, "Options", "ESTIMATOR", shown=False)
    """Estimator that must have the same mean, such as st_gumbel."""
    oracle: tuple[str, ...] = option((), "Options", "NAME", "--oracle", "-o", shown="all supported structures")
    """Structure for the tests, such as './mine.py:Mine[n=4]'. Without ESTIMATOR, this structure itself is tested. Repeatable."""
    alpha: float = option(1e-3, "Options", "NUMBER")
    """Error rate of the whole audit: the probability that a correct estimator fails."""
    seed: int = option(0, "Options", "N")
    """Random seed."""
    time: float = option(60.0, "Options", "SECONDS", min=0)
    """No new test starts after this many seconds."""
    quick: bool = option(False, "Options", None)
    """Fewer structures and replicates; for an oracle, one event and few scores."""
    strict: bool = option(False, "Options", None)
    """Exit with 4 if a test is undecided."""
    json: bool = option(False, "Options", None)
    """Print JSON."""


def audit(options: AuditOptions) -> None:
    """Test an estimator on small structures: shapes, randomness, batching, and whether its mean equals the exact gradient.

    ESTIMATOR is an estimator, its class, or a function (loss, oracle, scores, generator) that returns estimates shaped like the scores.

    With --oracle NAME and no ESTIMATOR, test every operation of the oracle against an enumeration of all structures.

    Exit codes: 0 no violation, 1 a violation (of the estimates or of the declared properties), 2 bad input, 3 the estimator raised,
    4 undecided under --strict.
    """
    with sentences():
        claims: dict[str, Any] = {name: getattr(options, name) for name in ("objective", "unbiased", "scale", "mean_of")}
        if options.estimator is None and not options.oracle:
            raise ValueError("got neither ESTIMATOR nor --oracle NAME; expected one to test, such as: structgrad audit rloo")
        if options.estimator is None and any(given is not None for given in claims.values()):
            raise ValueError(
                "got --objective, --unbiased, --scale or --mean-of without an ESTIMATOR; expected them with one, for they are its claims"
            )
        from ...suites.audit import audit as audit_estimator
        from ...suites.audit.oracles import audit_oracle
        from .. import audit as screen
        from .. import terminal
        from ..comparison import json_text
        from .run import launch

        launch.pin_threads()
        limits: dict[str, Any] = {"alpha": options.alpha, "seed": options.seed, "quick": options.quick, "seconds": options.time}
        found: list[Any] = [audit_oracle(name, **limits) for name in options.oracle] if options.estimator is None else []
        if options.estimator is not None:
            found.append(audit_estimator(options.estimator, structures=options.oracle, **claims, **limits))
        if options.json:
            records = []
            for one in found:
                records.append({"verdict": one.verdict, "exit_code": one.exit_code(strict=options.strict)})
                records[-1] |= {name: getattr(one, name) for name in ("causes", "remedies") if hasattr(one, name)} | asdict(one)
            typer.echo(json_text(records[0] if options.estimator else records, indent=2), nl=False)
        else:
            for one in found:
                terminal.console().print(screen.as_text(one))
    raise typer.Exit(max((one.exit_code(strict=options.strict) for one in found), key=[0, 4, 3, 1].index))
