"""Tests for bias: of fixed samples, and of growing ones."""
