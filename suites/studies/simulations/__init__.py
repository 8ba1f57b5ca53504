"""Do the intervals cover and the tests keep their levels? Simulations of the statistics on instances whose every estimate is known."""
