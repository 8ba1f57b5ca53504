"""The recipes of the page on code of one's own: all are Python, and the medians that they log are there."""

import re
from pathlib import Path
from typing import Any

import torch

import structgrad
from structgrad.suites.base import to_frame
from tests.reports import examples

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "bring-your-own.md"


def test_recipes_compile_and_numbers_are_medians() -> None:
    """Their libraries, such as wandb and mlflow, are not installed for tests."""
    recipes = dict(re.findall(r"```py(?:thon)?\n# ([\w.]+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    assert {"numbers", "torch.utils.tensorboard", "wandb", "mlflow", "lightning"} <= set(recipes)
    codes = {name: compile(text, name, "exec") for name, text in recipes.items()}
    names: dict[str, Any] = {"torch": torch, "structgrad": structgrad}
    exec(codes["numbers"], names)
    found = names["numbers"](to_frame(examples.rows()))
    assert found
    assert all(isinstance(value, float) and name.count("/") == 3 for name, value in found.items())
