"""Estimators of policies, decision by decision."""
