"""Register a plugin's loss function with verl, in the process of a training worker.

Uses verl internals: `register_policy_loss`, and `ppo_loss`, which looks a loss up by `policy_loss.loss_mode`.
"""

from __future__ import annotations

from marl_verl.algo.algorithms.losses import OWN
from marl_verl.config.parts import loss_named
from marl_verl.errors import MarlError


def register_loss(mode: str) -> None:
    """Register the function of `policy_loss.loss_mode`, which begins with `OWN`, in this process.

    Raises:
        MarlError: the plugin cannot be loaded in this process, or does not register the loss.
    """
    from verl.trainer.ppo.core_algos import register_policy_loss  # not at the top: it takes seconds to import

    function = loss_named(mode.removeprefix(OWN)).function
    if function is None:
        raise MarlError(f"loss '{mode.removeprefix(OWN)}' is no function in this process: the plugins differ")
    register_policy_loss(mode)(function)
