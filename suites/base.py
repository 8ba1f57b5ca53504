"""The vocabulary of a measurement: problems, rows of the result table, pairs that cannot be measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias

from annotated_types import Interval

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from ..estimators.base import Estimator
    from ..oracles.capabilities import Oracle

SCHEMA_VERSION = 3  # version of `Row`; raised when a column changes its meaning

Status = Literal["ok", "skipped", "error", "timeout", "oom", "crash", "nonfinite"]
"""``oom``: memory ran out. ``crash``: the process died. ``nonfinite``: the result was infinite or NaN."""

FAILED: tuple[Status, ...] = ("error", "timeout", "oom", "crash")
"""Cells with one of these are measured again when a run is resumed. Non-finite numbers are not, since they would be the same."""

# Columns of the result table: text with few values (a category in tables), integers below 2¹⁵, and below 2⁶³.
Label: TypeAlias = str
Small: TypeAlias = Annotated[int, Interval(ge=-(2**15), lt=2**15)]
Large: TypeAlias = Annotated[int, Interval(ge=-(2**63), lt=2**63)]

REFERENCE = "reinforce"  # times are relative to the total time of this estimator, and budgets are so many of its estimates

TASK, LEARNT = "task:", "learnt:"  # prefixes of the names of tasks, and of the scores and losses along a training run


def split_loss(name: str) -> tuple[str, str | None]:
    """The name of the scores, and of the loss if it is not their own: ``subset_regimes@f1`` is `subset_regimes` with `F1`.

    The loss may be code: ``subset_regimes@./mine.py:loss``.
    """
    scores, mark, loss = name.rpartition("@")
    return (scores, loss) if mark and (loss.isidentifier() or ":" in loss) and not name.startswith((TASK, LEARNT)) else (name, None)


def timed_nearest(problem: str, stage: str) -> list[tuple[str, ...]]:
    """Keys of the times that a problem at a stage may use, the nearest first; the first known time is used.

    They are the problem at this stage, its scores at this stage with another loss, the problem at another stage, and its scores anywhere.
    """
    scores, _ = split_loss(problem)
    return [("problem", problem, stage), ("scores", scores, stage), ("problem", problem), ("scores", scores)]


class ProblemLoss(Protocol):
    """A loss on structures ``[..., *event] -> [...]``, with its properties."""

    name: str
    differentiable: bool  # in the structure
    inside_hull: bool  # whether it is defined at points that are no structures
    vertex_degree: int | None  # as a polynomial in the parts *on the structures*; None if it is none
    extension: str
    """Its form between the structures: ``linear``, ``quadratic``, ``formula`` (its own formula) or ``none``. Bias that comes from the
    extension alone is no bias of the discrete problem."""
    offset: float  # the constant that was added to it

    def __call__(self, structure: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Instance:
    """One item: float64 scores ``[*event]`` and the loss that belongs to them."""

    name: str
    scores: Tensor
    loss: ProblemLoss


@dataclass(frozen=True, eq=False)
class Problem:
    """Instances of one oracle at one stage of training. The unit of replication of every aggregate is the instance."""

    name: str
    stage: str
    oracle: Oracle
    instances: tuple[Instance, ...]
    source: str


@dataclass(frozen=True)
class Row:
    """One row of the result table: one metric of one estimator on one instance (or on a whole problem, ``instance=""``).

    This is the only schema of a row. The types of tables (`COLUMNS`) and the checks of stored rows follow from its annotations. For
    the columns of a finding, ``metric`` to ``p_value``, see `Finding`.
    """

    cell: str  # identity of the cell; empty for skipped pairs and for values derived from several cells
    suite: Label
    problem: Label
    stage: Label
    source: Label
    oracle: Label
    loss: Label
    estimator: Label  # with its options, such as ``imle[lambda=2.5]``
    family: Label  # the registry name of the estimator without options
    vertex_degree: Small | None = None
    extension: Label = ""
    offset: float = 0.0
    estimator_version: Small = 1  # versions are declared, and raised when numbers change
    oracle_version: Small = 1
    suite_version: Small = 1
    objective: Label = ""
    unbiased: bool = False
    deterministic: bool = False
    instance: str = ""  # empty for a whole problem
    log_count: float | None = None  # log of its number of structures
    entropy: float | None = None  # of its Gibbs distribution, in nats
    normalised_entropy: float | None = None  # entropy / log_count, 1 for the uniform distribution and 0 for a single structure
    truth_norm: float | None = None
    truth_method: Label = ""
    truth_error: float | None = None
    metric: Label = ""
    unit: Label = "1"
    value: float | None = None
    low: float | None = None
    high: float | None = None
    interval: Label = ""
    setting: Label = ""
    size: float | None = None
    reference: Label = ""
    tier: Label = ""
    replicates: Large | None = None
    batches: tuple[float, ...] = ()
    sampling: Label = ""
    verdict: Label = ""
    p_value: float | None = None
    p_adjusted: float | None = None  # after Holm's correction over all tests of the run
    seed: Large = 0
    dtype: Label = "float64"
    device: Label = "cpu"
    status: Status = "ok"
    reason: str = ""
    error_type: Label = ""
    traceback: str = ""
    seconds: float | None = None  # time of the whole cell
    schema_version: Small = SCHEMA_VERSION


TYPES: dict[str, str] = {  # the pandas type of each annotation in `Row`
    "Label": "category",
    "Status": "category",
    "str": "string",
    "bool": "bool",
    "Small": "int16",
    "Small | None": "Int16",
    "Large": "int64",
    "Large | None": "Int64",
    "float": "float64",
    "float | None": "Float64",
    "tuple[float, ...]": "object",
}

COLUMNS: dict[str, str] = {field.name: TYPES[str(field.type)] for field in fields(Row)}
"""The columns of the table in their order, with their pandas types."""


def to_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """The rows as a table with the columns and types of `COLUMNS`; missing values are NA, never NaN."""
    return table(tuple(COLUMNS), map(vars, rows))


def from_csv(path: Path | str | IO[str]) -> pd.DataFrame:
    """The table that ``structgrad export --to csv`` wrote, with the columns and types of `COLUMNS`."""
    import pandas as pd

    texts = [name for name, dtype in COLUMNS.items() if dtype in ("category", "string", "object")]
    missing = {name: [""] for name in COLUMNS if name not in texts}
    types: dict[Any, Any] = dict.fromkeys(texts, "str")
    read = pd.read_csv(path, dtype=types, keep_default_na=False, na_values=missing)
    read["batches"] = [tuple(map(float, filter(None, values.split(";")))) for values in read["batches"]]
    return read.astype(COLUMNS)


def table(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Some columns of the result table, with its types, from records that may lack any of them."""
    import pandas as pd

    listed = list(records)
    defaults = {field.name: None if field.default is MISSING else field.default for field in fields(Row)}

    def column(name: str) -> Any:
        dtype: Any = "str" if COLUMNS[name] == "category" else COLUMNS[name]
        return pd.Series([record.get(name, defaults[name]) for record in listed], dtype=dtype).astype(COLUMNS[name])

    return pd.DataFrame({name: column(name) for name in columns})


class NonFiniteError(ValueError):
    """An estimator returned NaN or infinity."""


def check_finite(estimates: Tensor, name: str, before: int = 0) -> Tensor:
    """Return estimates ``[n, *event]``, or raise NonFiniteError with how many of these, and of ``before`` others, are not finite."""
    if not bool(estimates.sum().isfinite()):  # cheaper than a test of each; a sum that overflows is examined
        rows = estimates.reshape(len(estimates), -1)
        if bad := int((~rows.isfinite()).any(-1).sum()):
            kind = "NaN" if bool(rows.isnan().any()) else "infinity"
            raise NonFiniteError(f"`{name}` returned {kind} in {bad} of {before + len(rows)} draws")
    return estimates


def pairing(estimator: Estimator[Oracle], oracle: Oracle, loss: ProblemLoss, event_shape: tuple[int, ...] | None = None) -> str | None:
    """The reason that an estimator cannot be measured on an oracle, with scores of a shape and a loss; None if it can."""
    reason = estimator.incompatibility(oracle, event_shape)
    if reason is None and estimator.evaluations().loss_gradients and not loss.differentiable:
        reason = f"{estimator.name} needs gradients of the loss, and the loss {loss.name} gives values only"
    if reason is None and estimator.needs_gold and getattr(loss, "gold", None) is None:
        reason = f"{estimator.name} needs true structures, and the loss {loss.name} holds none"
    of_values = getattr(estimator, "needs_values_only", None)  # functions of one's own declare nothing
    if reason is None and estimator.inside_hull and not loss.inside_hull and not (of_values and of_values(oracle, event_shape)):
        reason = f"{estimator.name} evaluates the loss inside the hull, where the loss {loss.name} is not defined"
    return reason


def estimator_name(estimator: Any) -> str:
    """The name with the options that are not the defaults, as the command line takes it if options are numbers."""
    options = fields(estimator) if is_dataclass(estimator) and not hasattr(estimator, "origin") else ()
    defaults = {one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in options}
    chosen = {name.rstrip("_"): value for name, default in defaults.items() if (value := getattr(estimator, name)) != default}
    text = ",".join(f"{key}={getattr(value, 'name', value)}" for key, value in chosen.items())
    return f"{estimator.name}[{text}]" if text else str(estimator.name)
