"""Proxies of oracles whose calls go through a hook: to deal samples from a script, to count calls, to time them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def hooked(value: T, methods: Iterable[str], hook: Callable[..., Any], *capabilities: type) -> T:
    """Copy an object, usually an oracle, so that some of its methods go through a hook.

    The copy shares the attributes of the object, and has the hook as its attribute ``hook``. Its class is a subclass of the object's, so
    that capabilities and kernels stay the same. Calls within a call reach the hook too. It is called as
    ``hook(name, operation, *args, **named)``, where ``operation(*args, **named)`` is the original call. The copy is an instance of the
    ``capabilities`` too.
    """
    kind: Any = type(value)
    twin: Any = object.__new__(_hooked_class(kind, tuple(methods), capabilities))
    twin.__dict__.update(vars(value), hook=hook)
    return twin  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=128)
def _hooked_class(kind: type, methods: tuple[str, ...], capabilities: tuple[type, ...]) -> type:
    def through_hook(name: str) -> Callable[..., Any]:
        operation = getattr(kind, name, None)  # an abstract method of a capability has none

        def call(self: Any, *args: Any, **named: Any) -> Any:
            return self.hook(name, functools.partial(operation, self) if operation else None, *args, **named)

        return functools.wraps(operation)(call) if operation else call

    bases = (kind, *(one for one in capabilities if not issubclass(kind, one)))
    made: Any = type(kind)(kind.__name__, bases, {name: through_hook(name) for name in methods})
    made.__abstractmethods__ = frozenset()
    return made  # type: ignore[no-any-return]
