"""Plans: grids, presets, scope and estimates of time."""
