"""Numbers of a run that are compared, from its metrics."""

import statistics
from collections.abc import Callable, Mapping

from marl_verl.errors import MarlError, unknown
from marl_verl.inspect.run_files import Run

Of = Callable[[list[float]], float]

FORMS: Mapping[str, Of] = {
    "last": lambda values: values[-1],
    "mean": statistics.fmean,
    "max": max,
    "gain": lambda values: values[-1] - values[0],
    "area": lambda values: statistics.fmean(values[1:]),
}
"""What a metric's values over the steps become; "area" leaves out the first, the value before training."""


def curve(run: Run, metric: str) -> dict[float, float]:
    """Step -> value of a metric."""
    return {record["step"]: float(record[metric]) for record in run.metrics if metric in record}


def column(run: Run, metric: str) -> list[float]:
    """The values of a metric over the steps. MarlError if no record has it."""
    if values := [*curve(run, metric).values()]:
        return values
    names = {name for record in run.metrics for name in record}
    raise MarlError(f"run '{run.folder}': {unknown('metric', metric, names)}")


def parsed(measure: str) -> tuple[Of, str]:
    """(form, metric) of "METRIC", its last value, or "FORM:METRIC". MarlError for an unknown form."""
    form, colon, metric = measure.partition(":")
    if not colon:
        return FORMS["last"], measure
    if form not in FORMS:
        raise unknown("form of a measure", form, FORMS)
    return FORMS[form], metric


def measured(run: Run, measure: str) -> float:
    form, metric = parsed(measure)
    return form(column(run, metric))
