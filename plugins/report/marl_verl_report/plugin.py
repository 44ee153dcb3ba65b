"""The commands of this distribution."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.command("report", "marl_verl_report.report", "write one HTML file that shows and compares runs")
    registry.command("watch", "marl_verl_report.watch", "serve the report of a running run on this machine")
    registry.command("compare", "marl_verl_report.compare", "train two recipes with the same seeds, and compare them")
