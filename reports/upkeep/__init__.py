"""Around the runs: what a machine lacks, what a folder holds, tables for other programs, a first project."""
