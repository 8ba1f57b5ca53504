"""Deterministic relaxations and sparse marginalisation."""
