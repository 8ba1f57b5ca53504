"""Mutation testing: places of small faults in the sources, their random choice, and the runs of their tests."""
