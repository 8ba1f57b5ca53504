"""Tests: equivalence, and many at once."""
