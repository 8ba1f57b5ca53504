"""Surrogate projections and finite differences of argmax."""
