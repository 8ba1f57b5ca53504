"""SparseMAP by an active set: solver, solution, and the kernels of both."""
