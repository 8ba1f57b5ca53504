"""Costs of an estimator: time and its growth."""
