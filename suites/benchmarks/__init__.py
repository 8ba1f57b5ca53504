"""Benchmarks of asv: thin classes over the suites, and the table of cases, which `tests/benchmarks` also uses.

asv imports every module here, so nothing else belongs in this folder.

asv runs today's benchmarks with any commit. Their names and sizes are written here, or read from today's files, so that they are the same
for every commit. Parts that a commit lacks are skipped.
"""
