"""Formulas of estimators for independent categories."""

from __future__ import annotations

from tests.catalogue.setting import Formula

FORMULAS: dict[str, Formula] = {}
