"""Kernels of categories: best parts and log-partitions in closed form."""
