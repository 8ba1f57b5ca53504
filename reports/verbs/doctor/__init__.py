"""``structgrad doctor``: checks of a machine and of a device."""
