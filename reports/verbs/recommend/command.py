"""``structgrad recommend``: which estimator to take for a structure, a loss, a batch and a state of the model."""

from __future__ import annotations

from typing import Annotated

import typer

from ..describe import names
from ..outcome import sentences

_ANSWERS = {"yes": True, "no": False}


def recommend(  # noqa: PLR0913 - one parameter per option
    *,
    oracle: Annotated[
        str,
        typer.Option(
            help=r"A structure by name, with sizes or without: spanning_tree, 'subset\[n=20,k=5]'.",
            metavar="NAME",
            show_default=False,
            autocompletion=names.complete_oracles,
        ),
    ],
    loss_gradients: Annotated[
        str, typer.Option(help="Whether the loss has gradients in the structure, or else gives values only: yes or no.", metavar="YES|NO")
    ] = "yes",
    unbiased: Annotated[bool, typer.Option("--unbiased", help="Unbiased estimators alone.")] = False,
    batch: Annotated[int, typer.Option(help="Items of a batch, whose estimates are averaged.", metavar="B")] = 32,
    loss_cost: Annotated[
        float,
        typer.Option(help="How many times as long as a REINFORCE estimate one evaluation of your loss takes.", metavar="X"),
    ] = 0.0,
    stage: Annotated[
        str,
        typer.Option(
            help="The state of the model: init, early, final, or h=<normalised entropy>.",
            metavar="STAGE",
            autocompletion=names.complete_stages,
        ),
    ] = "early",
    run: Annotated[
        str | None,
        typer.Option(
            help="A run of your own, its folder or its results.parquet; also under a URL.",
            metavar="DIR",
            show_default="the published table",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Name the best estimator, those that cannot be told from it, and the evidence, from measurements that exist already.

    All candidates get the same time, that of a REINFORCE estimate for each item of the batch, and are ordered by ρ: what a step along the
    average is worth beside one along the exact gradient. Whoever mostly estimates 0 is never named.
    """
    with sentences():
        if loss_gradients not in _ANSWERS:
            raise ValueError(f"--loss-gradients got {loss_gradients!r}; expected yes or no")
        from ...analysis.recommendation import recommend as found_by
        from . import wording

        found = found_by(
            oracle,
            loss_gradients=_ANSWERS[loss_gradients],
            unbiased=unbiased,
            batch=batch,
            loss_cost=loss_cost,
            stage=stage,
            run=run,
        )
        typer.echo(wording.as_json(found) if as_json else "\n".join(wording.lines(found)))
