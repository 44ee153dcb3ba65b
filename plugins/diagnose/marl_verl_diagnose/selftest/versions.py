"""Check of versions and imports: the findings of `marl-verl doctor`."""

from __future__ import annotations

from itertools import chain

from marl_verl_diagnose.doctor import loading, machine, packages
from marl_verl_diagnose.selftest import Figures, Place, require


def check(place: Place, figures: Figures) -> None:
    found = list(chain(packages.check(), machine.check(), loading.plugins(print), loading.libraries(print)))
    for each in found:
        print(f"{each.state:<8} {each.check}: {each.message} {each.do}")
    for state in ("error", "warning"):
        if lines := [f"{each.check}: {each.message}" for each in found if each.state == state]:
            figures[f"{state}s"] = lines
    require("errors" not in figures, "; ".join(figures.get("errors", [])))
