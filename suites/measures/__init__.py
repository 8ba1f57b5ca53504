"""What is measured: bias and variance, wall-clock time, memory, sparsity."""
