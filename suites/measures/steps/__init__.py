"""Steps along estimates: descent, equal steps, regret."""
