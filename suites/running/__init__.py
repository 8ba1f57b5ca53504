"""Plans, their cells, and the runner."""
