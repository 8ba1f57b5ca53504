"""Structures that are their derivations and nothing else."""
