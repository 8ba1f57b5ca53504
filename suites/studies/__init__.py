"""Studies of the suites themselves: simulations, false alarms, published toys."""
