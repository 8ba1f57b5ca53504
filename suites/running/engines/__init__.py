"""Engines: workers on this machine, or on a Ray cluster."""
