"""The registered parts of this distribution, all lazy: listing plugins imports none of them."""

from __future__ import annotations

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("kuhn-poker", "marl_verl_self_play.kuhn_poker:KuhnPoker")
    registry.advantage("role-conditioned", "marl_verl_self_play.role_conditioned:RoleConditioned")
    registry.workflow("kuhn-poker", "marl_verl_self_play.kuhn_poker:KuhnPokerGame")
