"""Figures as functions of the result table, as SVG text that can be put into a page.

Text and lines take the colour of the surrounding page (``currentColor``), so that one file serves light and dark pages. The same table
gives the same bytes. An estimator family has one colour and marker in every figure.
"""

from __future__ import annotations

import pandas as pd

from ..drawing.drawing import FILES, Drawing, Material
from ..drawing.styles import family_style, styles
from .bias_variance import bias_against_variance
from .convergence import convergence
from .descent import descent
from .error_cost import error_against_evaluations, error_against_seconds
from .instances import instances
from .ranking import ranking
from .scaling import scaling
from .sparsity import sparsity

__all__ = ["FILES", "OF_A_PROBLEM", "Drawing", "Material", "draw", "family_style", "styles"]

OF_A_PROBLEM = (
    bias_against_variance,
    error_against_seconds,
    error_against_evaluations,
    instances,
    scaling,
    descent,
    sparsity,
    convergence,
)
"""What is drawn of every problem, where there is something to draw."""


def draw(frame: pd.DataFrame) -> list[Drawing]:
    """All figures of a run: the ranking over all problems, and then problem by problem."""
    material = Material(frame)
    overall = [ranking(material)]
    each = [make(material, problem) for problem in material.problems for make in OF_A_PROBLEM]
    return [drawing for drawing in overall + each if drawing is not None]
