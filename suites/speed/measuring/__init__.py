"""Times of measuring: what a cell spends on measuring itself, replicates, enumeration, shards."""
