"""The report of runs as one HTML page, stored or of a running run, and paired comparisons."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.command("report", "marl_verl_report.report", "write one HTML file that shows and compares runs")
    registry.command("watch", "marl_verl_report.watch", "serve the report of a running run on this machine")
    registry.command("compare", "marl_verl_report.compare", "train two recipes with the same seeds, and compare them")
    registry.script("human", "marl_verl_report.human:human")
    registry.script("human-in-training", "marl_verl_report.human:human_in_training")
