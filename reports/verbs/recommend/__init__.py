"""``structgrad recommend``: which estimator to take."""
