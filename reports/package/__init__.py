"""Benchmarks and exact analysis of gradient estimators through discrete, structured latent variables.

The names that a model or a study needs most are here too, and loaded where they are used: ``structgrad.Subset``,
``structgrad.StructuredLayer``, ``structgrad.measure``.
"""

TYPE_CHECKING = False  # as of `typing`, whose import takes longer than this one
__version__: str

PLACES = {
    "oracles": "Alignment Assignment CTC CardinalitySubset Categorical Constituency DerivedOracle EditAlignment Grammar "
    "IndependentCategoricals LabelledConstituency LabelledProjectiveTree LinearChain Oracle ProjectiveTree SecondOrderChain SemiMarkov "
    "ShiftReduce SpanningTree Subset TiedChain TiedSemiMarkov make_oracle soft_dtw_divergence",
    "estimators": "Estimator PathwiseEstimator StructuredLayer Supervised crf_loss make_estimator make_noise train_step",
    "suites": "learn measure run",
    "suites.audit": "audit",
    "suites.running.probe": "Probe",
    "suites.tasks": "make_task",
    "reports": "recommend",
}
"""The names of each module that are names of the package too."""

if TYPE_CHECKING:
    from structgrad.estimators import (
        Estimator as Estimator,
        PathwiseEstimator as PathwiseEstimator,
        StructuredLayer as StructuredLayer,
        Supervised as Supervised,
        crf_loss as crf_loss,
        make_estimator as make_estimator,
        make_noise as make_noise,
        train_step as train_step,
    )
    from structgrad.oracles import (
        CTC as CTC,
        Alignment as Alignment,
        Assignment as Assignment,
        CardinalitySubset as CardinalitySubset,
        Categorical as Categorical,
        Constituency as Constituency,
        DerivedOracle as DerivedOracle,
        EditAlignment as EditAlignment,
        Grammar as Grammar,
        IndependentCategoricals as IndependentCategoricals,
        LabelledConstituency as LabelledConstituency,
        LabelledProjectiveTree as LabelledProjectiveTree,
        LinearChain as LinearChain,
        Oracle as Oracle,
        ProjectiveTree as ProjectiveTree,
        SecondOrderChain as SecondOrderChain,
        SemiMarkov as SemiMarkov,
        ShiftReduce as ShiftReduce,
        SpanningTree as SpanningTree,
        Subset as Subset,
        TiedChain as TiedChain,
        TiedSemiMarkov as TiedSemiMarkov,
        make_oracle as make_oracle,
        soft_dtw_divergence as soft_dtw_divergence,
    )
    from structgrad.reports import recommend as recommend
    from structgrad.suites import learn as learn, measure as measure, run as run
    from structgrad.suites.audit import audit as audit
    from structgrad.suites.running.probe import Probe as Probe
    from structgrad.suites.tasks import make_task as make_task
else:

    def __getattr__(name: str) -> object:
        from importlib import import_module, metadata

        if name == "__version__":
            return metadata.version("structgrad")
        for place, names in PLACES.items():
            if name in names.split():
                return getattr(import_module(f"structgrad.{place}"), name)
        if name in ("distributions", "estimators", "oracles", "suites"):
            return import_module(f"structgrad.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*globals(), "__version__", *(name for names in PLACES.values() for name in names.split())])
