"""Options from a TOML file: the same names, with dashes or underscores; what the command line says wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def read_options(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of a file as the defaults of a command; called before the other options are read.

    A key is a long option or the argument, a list stands for an option that is repeated, true and false for one without a value.
    """
    if path is not None and not context.resilient_parsing:
        from ..outcome import sentences

        with sentences():
            context.default_map = {**(context.default_map or {}), **options(path, _parameters(context))}
    return path


def options(path: Path, parameters: dict[str, Any]) -> dict[str, Any]:
    """The values of a file by the names of the command's parameters.

    Args:
        path: a TOML file.
        parameters: those of the command, by the key that a file may use.

    Raises:
        ValueError: a file that cannot be read, an unknown key, or a value that no option can have.
    """
    return {
        parameters[key].name: _value(path, name, parameters[key], value)
        for name, value in _table(path).items()
        for key in [_key(path, name, parameters)]
    }


def _table(path: Path) -> dict[str, Any]:
    from ....suites.trust import toml_of

    try:
        return toml_of(path)
    except ValueError as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from error


def _key(path: Path, name: str, parameters: dict[str, Any]) -> str:
    from ....oracles.registry import unknown

    key = name.replace("_", "-")
    if key not in parameters:
        raise ValueError(f"{path}: {unknown(name, parameters, 'key')}")
    return key


def _value(path: Path, name: str, parameter: Any, value: Any) -> Any:
    """The value as the command line would give it: a list for what may be repeated, a text or a switch for all else."""
    repeated = getattr(parameter, "multiple", False) or parameter.nargs != 1
    items = value if isinstance(value, list) else [value]
    switch = getattr(parameter, "is_flag", False)
    if (
        value == []
        or (isinstance(value, list) and not repeated)
        or any(isinstance(item, dict | list) or (isinstance(item, bool) != switch) for item in items)
    ):
        wanted = "true or false" if switch else "a list of texts" if repeated else "a text or a number"
        raise ValueError(f"{path} got {name} = {value!r}; expected {wanted}")
    return value if switch else [str(item) for item in items] if repeated else str(value)


def _parameters(context: typer.Context) -> dict[str, Any]:
    """The parameters of a command by what a file may call them."""
    found: dict[str, Any] = {}
    for parameter in context.command.params:
        flags = [flag[2:] for flag in parameter.opts if flag.startswith("--")]
        found |= dict.fromkeys(flags or [str(parameter.name)], parameter)
    return {key: parameter for key, parameter in found.items() if key not in ("config", "help")}
