"""Compacted cells: parts in Parquet, and the journal that says which of them count."""
