"""Moments, metrics with intervals, and random streams."""
