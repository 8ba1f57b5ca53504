"""The laws of structures as distributions of `torch.distributions`: see `structgrad.oracles.distributions`."""

from structgrad.oracles.distributions import *  # noqa: F403
