"""Benchmarks of asv: thin classes over the suites, and the table of cases, which `tests/benchmarks` shares.

asv imports every module here, so nothing else belongs in this folder.

asv runs today's benchmarks against any commit. So what they measure is written out here, or read from today's files, by names and sizes
that do not move with the measured commit, and what it lacks is skipped.
"""
