"""Formulas of policies, decision by decision."""

from __future__ import annotations

from tests.catalogue.setting import Formula

FORMULAS: dict[str, Formula] = {}
