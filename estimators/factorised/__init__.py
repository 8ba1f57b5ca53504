"""Estimators of independent categories and bits."""
