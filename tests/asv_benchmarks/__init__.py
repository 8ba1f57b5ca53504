"""Benchmarks of asv: thin classes over the suites, and the table of cases, which `tests/benchmarks` also uses.

asv imports every module here, so nothing else belongs in this folder. It runs today's benchmarks with the measured commit.
"""
