"""Projections on the simplex and the hypersimplex, and their kernels."""
