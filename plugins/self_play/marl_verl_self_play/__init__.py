"""Self-play in zero-sum games: Kuhn Poker, with its exact solution."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("kuhn-poker", "marl_verl_self_play.kuhn_poker:KuhnPoker")
    registry.script("kuhn-equilibrium", "marl_verl_self_play.kuhn_poker:kuhn_equilibrium")
    registry.workflow("kuhn-poker", "marl_verl_self_play.kuhn_poker:KuhnPokerGame")
    registry.task("proposed-arithmetic", "marl_verl_self_play.proposer_solver:ProposedArithmetic")
    registry.workflow("proposer-solver", "marl_verl_self_play.proposer_solver:ProposerSolver")
    registry.reward("proposer-learnability", "marl_verl_self_play.proposer_solver:proposer_learnability")
    registry.reward("proposer-uncertainty", "marl_verl_self_play.proposer_solver:proposer_uncertainty")
    registry.reward("solver-correct", "marl_verl_self_play.proposer_solver:solver_correct")
    registry.task("majority-debate", "marl_verl_self_play.majority_debate:MajorityDebate")
    registry.workflow("majority-debate", "marl_verl_self_play.majority_debate:MajorityDebateGame")
