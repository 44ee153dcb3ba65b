"""Tiny models made for a run, pretrained ones from Python packages, and the demo tasks that they learn."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("split-plan-path", "marl_verl_tiny.split_plan_path:SplitPlanPath")
    registry.task("inventory", "marl_verl_tiny.inventory:Inventory")
    registry.task("inventory-match", "marl_verl_tiny.inventory:InventoryMatch")
    registry.workflow("split-plan-path", "marl_verl_tiny.split_plan_path:ScoutMover")
    registry.workflow("inventory", "marl_verl_tiny.inventory:HolderAsker")
    registry.workflow("inventory-match", "marl_verl_tiny.inventory:InventoryMatchGame")
