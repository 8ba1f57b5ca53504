"""Options of `run` and `learn`: one field each, for help, completion, configuration file and the command that repeats a run."""

from __future__ import annotations

import ast
import inspect
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

import typer

from .catalogue import complete
from .outcome import sentences

PLAN, SCORES, PRECISION, MACHINE, OUTPUT = PANELS = ("Plan", "Your own scores", "Precision", "Machine", "Output")  # headings of the help
RUNS = Path("structgrad-results")  # parent folder of runs without `--out`
NOT_REPEATED = {"config", "dry_run", "fresh", "rerun", "json", "quiet"}  # options that the command that repeats a run leaves out
PRESETS = "the preset's"


def option(default: Any, panel: str | None, metavar: str | None, *flags: str, shown: str | bool = True, kind: str = "", **more: Any) -> Any:
    """Declare an option as a field, whose docstring is the help.

    It has no panel if it is the argument of a command, and no metavar if it is a switch. Names of a kind of `list` complete its value.
    """
    more |= {"metavar": metavar, "show_default": shown, "autocompletion": complete(kind) if kind else None}
    info = typer.Argument(**more) if panel is None else typer.Option(..., *flags, rich_help_panel=panel, **more)
    return field(default=default, metadata={"info": info})


def seconds_of(text: str) -> float:
    """Convert a duration such as ``45``, ``90s``, ``2m``, ``0.5 h`` or ``1h30m`` to seconds."""
    units = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    piece = r"(\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
    if re.fullmatch(rf"{piece}|({piece}(ms|min|s|m|h|d))+", text := text.replace(" ", "")):
        found = re.findall(rf"({piece})(ms|min|s|m|h|d|)", text)
        seconds = math.fsum(float(number) * units[unit] for number, _, unit in found)
        if 0 < seconds < math.inf:
            return seconds
    raise typer.BadParameter("expected a positive duration such as 90s, 2m or 1h30m, or a number of seconds")


def read_options(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of a TOML file as defaults of a command: keys are long options or the argument, and lists are repeated options."""
    if path is None or context.resilient_parsing:
        return path
    with sentences():
        from ...oracles.registry import unknown
        from ...suites.trust import toml_of

        known: dict[str, Any] = {}
        for parameter in context.command.params:
            names = {flag[2:] for flag in parameter.opts if flag.startswith("--")} or {str(parameter.name)}
            known |= dict.fromkeys(names - {"config", "help"}, parameter)
        try:
            table = toml_of(path)
        except ValueError as error:
            raise ValueError(f"{path} is not a TOML file: {error}") from error
        found: dict[str, Any] = {}
        for name, value in table.items():
            if (key := name.replace("_", "-")) not in known:
                raise ValueError(f"{path}: {unknown(name, known, 'key')}")
            repeated = getattr(known[key], "multiple", False) or known[key].nargs != 1
            items = value if isinstance(value, list) and repeated else [value]
            switch = getattr(known[key], "is_flag", False)
            if not items or any(isinstance(item, dict | list) or isinstance(item, bool) != switch for item in items):
                wanted = "true or false" if switch else "a list of texts" if repeated else "a text or a number"
                raise ValueError(f"{path} got {name} = {value!r}; expected {wanted}")
            found[str(known[key].name)] = list(map(str, items)) if repeated else value if switch else str(items[0])
        context.default_map = {**(context.default_map or {}), **found}
    return path


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `run` and `learn`; `verb` is the command that takes them."""

    verb: ClassVar[str]

    name: str | None = option(None, PLAN, "NAME", shown=False)
    """Name of your own estimator in tables. For several, write -e NAME=./my.py:mine."""
    plugin: tuple[Path, ...] = option((), PLAN, "FILE", shown=False)
    """Python file with estimators and oracles to select by their `name`. Repeatable."""
    config: Path | None = option(None, PLAN, "FILE", shown=False, is_eager=True, callback=read_options)
    """TOML file with options under their names here. Options on the command line override it."""
    jobs: int | None = option(None, MACHINE, "N", "--jobs", "-j", shown="one per core or device", min=0)
    """Worker processes; 0 runs in this process, without time limits. Does not change the numbers."""
    timeout: float | None = option(None, MACHINE, "DURATION", shown="a multiple of the estimate", parser=seconds_of)
    """CPU time limit per cell: 90s, 2m."""
    dry_run: bool = option(False, OUTPUT, None)
    """Show the plan with estimates of time and memory, and exit."""
    fresh: bool = option(False, OUTPUT, None)
    """Discard finished cells of an earlier run."""
    fail_fast: bool = option(False, OUTPUT, None)
    """Stop at the first failed cell."""
    json: bool = option(False, OUTPUT, None)
    """Print one line of JSON at the end; everything else goes to standard error."""
    quiet: bool = option(False, OUTPUT, None, "--quiet", "-q")
    """Print only the last lines."""
    out: str | None = option(None, OUTPUT, "DIR", "--out", "-o", shown="structgrad-results/<hash of the plan>")
    """Folder, or URL such as s3://bucket/run, for the results."""

    def check_exclusive(self, *pairs: tuple[str, str]) -> None:
        """Raise ValueError for the first pair of options that are both given."""
        for pair in pairs:
            given = [(name, getattr(self, name)) for name in pair]
            if all(value for _, value in given):
                shown = " and ".join(f"--{name} {value}" if isinstance(value, str) else f"--{name}" for name, value in given)
                raise ValueError(f"`{self.verb}` got both {shown}; give one of them")


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """Options of `run`."""

    verb = "run"

    suite: tuple[str, ...] = option((), None, "SUITE", shown=False, kind="suites")
    """Suites (names or globs). Default: the suites of the preset."""
    preset: str | None = option(None, PLAN, "NAME", shown="quick", kind="presets")
    """quick (first look, minutes), standard (conclusions, about an hour) or thorough (hours or days). Other options override it."""
    quick: bool = option(False, PLAN, None)
    """Same as --preset quick."""
    estimator: tuple[str, ...] = option((), PLAN, "NAME", "-e", "--estimator", shown=PRESETS, kind="estimators")
    """Name, name with options or glob: 'imle[lambda=2.5]', 'reinforce*'. Or your own class, function or layer: module:Mine, ./my.py:mine
    (measured again when the file changes). Repeatable."""
    problem: tuple[str, ...] = option((), PLAN, "NAME", "-p", "--problem", shown=PRESETS, kind="problems")
    """Name or glob, or a structure with a size: 'subset[n=10,k=5]'. Or your own: './my.py:Mine[n=8]' (measured again when the file
    changes). Repeatable."""
    stage: tuple[str, ...] = option((), PLAN, "NAME", shown=PRESETS, kind="stages")
    """Entropy level such as h=0.4, or a stage of training (init, early, final). Globs are allowed. Repeatable."""
    loss: tuple[str, ...] = option((), PLAN, "NAME", shown=PRESETS, kind="losses")
    """Loss for all problems; 'own' means the default loss of each problem. Or your own: module:loss, ./my.py:loss (measured again when the
    file changes). For one problem only, use --problem subset_regimes@f1. Repeatable."""
    offset: float = option(0.0, PLAN, "NUMBER")
    """Constant added to every loss."""
    data: Path | None = option(None, PLAN, "DIR", shown="a folder that is found, else --builtin")
    """Folder with score files of trained models."""
    builtin: bool = option(False, PLAN, None)
    """Use built-in random scores even if score files are found."""
    timing: bool = option(True, PLAN, None, "--timing/--no-timing")
    """Include suites that need an otherwise idle machine."""
    file: Path | None = option(None, SCORES, "FILE", shown=False)
    """Measure on your scores (.npz or .safetensors)."""
    oracle: str | None = option(None, SCORES, "NAME", shown="linear_chain", kind="oracles")
    """Structure of the scores in --file, such as 'subset[k=3]'. Without --file, a structure with a size, such as 'subset[n=10,k=5]' (same
    as --problem)."""
    field: tuple[str, ...] = option((), SCORES, "KEY=VALUE", shown=False)
    """Array names in the file (scores, transition, start, end, gold, lengths) and their meaning (meaning=cost, temperature). For
    example, --field scores=logits. Repeatable."""
    instances: int | None = option(None, PRECISION, "N", shown=PRESETS, min=1)
    """Instances per problem and entropy level."""
    replicates: int | None = option(None, PRECISION, "N", shown=PRESETS)
    """Number of independent estimates before the first check of precision."""
    max_replicates: int | None = option(None, PRECISION, "N", shown=PRESETS)
    """Maximum number of independent estimates per instance."""
    seconds: float | None = option(None, PRECISION, "DURATION", shown=PRESETS, parser=seconds_of)
    """Time limit for one estimator on one instance: 20, 90s, 2m."""
    budget: float | None = option(None, PRECISION, "DURATION", shown="none", parser=seconds_of)
    """Time limit for the whole run, such as 10m. It is shared among all cells; no cell starts after it."""
    seed: int = option(0, PRECISION, "N")
    """Random seed."""
    tier: str = option("auto", PRECISION, "NAME")
    """exact (sums over all samples where possible), mc (draws samples), or auto."""
    dtype: str = option("float64", PRECISION, "NAME")
    """dtype of the estimators: float64 or float32."""
    batch_size: int = option(4096, MACHINE, "N")
    """Rows per launch. Does not change the numbers."""
    threads: int = option(1, MACHINE, "N", min=1)
    """Threads per worker. Timings always use one."""
    engine: str = option("local", MACHINE, "NAME", kind="engines")
    """local, or ray (workers on a Ray cluster)."""
    address: str | None = option(None, MACHINE, "ADDRESS", shown="a new local one")
    """Address of the Ray cluster; auto connects to the running one."""
    memory_limit: float | None = option(None, MACHINE, "GIB", shown="none")
    """Memory limit per worker, in GiB."""
    gpus_per_cell: float | None = option(None, MACHINE, "SHARE", shown="1 with --device cuda")
    """GPU share per Ray worker: 0.25 runs four workers on one GPU."""
    device: str = option("cpu", MACHINE, "NAME")
    """cpu, cuda, or one of several such as cuda:1. With `--engine ray`, cuda is all GPUs of the cluster."""
    shard: str | None = option(None, MACHINE, "K/N", shown=False)
    """Measure only this part of the plan, such as 3/40, for an array job. Join the parts with `structgrad merge`."""
    rerun: str | None = option(None, OUTPUT, "WHICH", shown=False)
    """Measure only these cells again: failed, or a suite, problem, entropy level or estimator, or a glob."""


@dataclass(frozen=True, kw_only=True)
class LearnOptions(Options):
    """Options of `learn`."""

    verb = "learn"

    task: tuple[str, ...] = option((), None, "TASK", shown="clusters", kind="tasks")
    """Tasks, optionally with sizes: clusters, 'clusters[clusters=5]'. Or your own: module:MyTask, ./mine.py:MyTask."""
    estimator: tuple[str, ...] = option((), PLAN, "NAME", "-e", "--estimator", shown="one per family", kind="estimators")
    """Name, name with options or glob; or your own class, function or layer: ./my.py:mine. Without options, the most important one is tuned
    on the validation split. Repeatable."""
    loss: tuple[str, ...] = option((), PLAN, "FILE:NAME", shown="the loss of each task")
    """Your own loss: a function of predictions and labels with one value per item, module:loss or ./my.py:loss. Repeatable."""
    seeds: int | None = option(None, PLAN, "N", shown="5", min=1, max=1000)
    """Training runs of each estimator on each task."""
    quick: bool = option(False, PLAN, None)
    """First look in about a minute: clusters, 8 estimators, 3 seeds, fewer steps."""
    study: bool = option(False, PLAN, None)
    """The study of docs/results/learning.md: all tasks, all estimators that fit, 5 seeds, gradients. Takes hours."""
    gradients: bool | None = option(None, PLAN, None, "--gradients/--no-gradients", shown="yes; no with --quick")
    """Also measure bias, variance, cosine and ρ along runs with the exact gradient, and correlate them with final accuracy."""


def parameters(kind: type[Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a command by name, first those that a dataclass declares itself, then those of its base."""
    hints, found = get_type_hints(kind), {}
    helps: dict[str, str] = {}
    for base in kind.__mro__[:-1]:
        body: list[Any] = ast.parse(inspect.getsource(base)).body[0].body  # type: ignore[attr-defined]
        helps |= {ast.unparse(one.target): text.value.value for one, text in pairwise(body) if isinstance(one, ast.AnnAssign) and one.value}
    for one in sorted(fields(kind), key=lambda field: field.name not in vars(kind)["__annotations__"]):
        hint, default, info = hints[one.name], one.default, one.metadata["info"]
        if get_origin(hint) is tuple:  # repeatable
            hint, default = list[get_args(hint)[0]], MISSING if default is MISSING else []  # type: ignore[misc]
        if hint is bool and not info.param_decls:
            info.param_decls = (f"--{one.name.replace('_', '-')}",)  # without a negative
        default = inspect.Parameter.empty if default is MISSING else default
        info.help = " ".join(helps[one.name].split()).replace("[", r"\[")
        found[one.name] = inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, info])
    return found


def takes(kind: type[Any], function: Callable[[Any], None]) -> Callable[..., None]:
    """Make a command of a function of options, with one parameter per field in the order of `PANELS`."""

    def verb(**given: Any) -> None:
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        function(kind(**values))

    order: dict[str | None, int] = {panel: place for place, panel in enumerate(PANELS)}
    found = sorted(parameters(kind).values(), key=lambda one: order.get(one.annotation.__metadata__[0].rich_help_panel, -1))
    verb.__doc__, verb.__name__, verb.__signature__ = function.__doc__, function.__name__, inspect.Signature(found)  # type: ignore[attr-defined]
    return verb


def command(options: Options) -> str:
    """The command that repeats a run: every option with a value other than its default."""
    words: list[str] = []
    for name, parameter in parameters(type(options)).items():
        value, info = getattr(options, name), parameter.annotation.__metadata__[0]
        if name in NOT_REPEATED or value in (parameter.default, ()):
            continue
        flag, _, negative = (info.param_decls or (f"--{name.replace('_', '-')}",))[0].partition("/")
        for item in value if isinstance(value, tuple) else (value,):
            flags = [] if info.rich_help_panel is None else [negative if item is False else flag]
            words += flags if isinstance(item, bool) else [*flags, str(item)]
    return shlex.join(["structgrad", options.verb, *words])
