"""Analyses: from the result table to values, asked once."""
