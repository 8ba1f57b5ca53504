"""Benchmarks of asv: thin classes over the suites. asv imports every module here, so nothing else belongs in this folder.

asv runs today's benchmarks against any commit. So what they measure is written out here, by names and sizes that do not move with the
registries, and what a commit lacks is skipped.
"""
