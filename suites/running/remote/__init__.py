"""Remote runs: the folder of a run mirrored to an object store, such as ``s3://bucket/run``, and read from there."""
