"""A planner, an executor and a verifier walk over a board: a move is made if the verifier says yes to it."""

import random

from marl_verl_games import log
from marl_verl_games.game import STEPS, Played, play
from marl_verl_games.plan_path import PathGame, moves_in
from marl_verl_games.tiny_plan_path import WORD, TinyPlanPath, blocked, planner_sees, written
from marl_verl_tiny.grid import cells

from marl_verl import Workflow, hookimpl
from marl_verl.options import Positive
from marl_verl.tasks import quick


class PlanExecuteVerify(Workflow):
    """In each turn the planner, who knows the goal, plans two moves; the executor, who knows the walls, chooses one;
    the verifier, who knows both, says yes or no. The executor sees a refused move as blocked until one is made."""

    turns: Positive = 6

    async def run(self, task, team):
        now, moves, refused = Played(PathGame.of(task)), [], []
        for _ in range(self.turns):
            at = now.game.cell
            plan = moves_in((await team["planner"].act(planner_sees(task, at))).text) or ()
            blocked_now = [move for move in STEPS if move in refused or now.game.beside(at, move) is None]
            seen = f"blocked {written(blocked_now) or 'none'} plan {written(plan[:2]) or 'none'}"
            action = await team["executor"].act(seen)
            move = (moves_in(action.text) or [""])[0]
            if not move:
                team.invalid(action, "no move")
            elif (await team["verifier"].act(verifier_sees(task, at, move))).text.strip() == "yes":
                now, moves, refused = play(now, [move]), [*moves, move], []
                team.propose(log.written([log.Line("executor", "moves", tuple(moves))]))
                if now.game.solved:
                    break
            else:
                refused.append(move)
        return log.written([log.Line("executor", "moves", tuple(moves))])


def verifier_sees(task, at, move):
    return f"at {at} goal {task.data['goal']} blocked {blocked(task, at)} move {WORD[move]}"


def verdict(task, at, move):
    game = PathGame.of(task)
    return "yes" if game.beside(at, move) and game.left(game.beside(at, move)) < game.left(at) else "no"


class VerifiedPaths(TinyPlanPath):
    """`plan-path-tiny` with demonstrations of the verifier; a careless one says yes to every move."""

    def vocabulary(self):
        return [*super().vocabulary(), "move", "yes", "no"]

    def demonstrations(self, agent, count, seed, good):
        if agent != "verifier":
            return super().demonstrations(agent, count, seed, good)
        rng, pairs = random.Random(f"verifier {seed}"), []
        for task in rng.choices(self.generate("train", 500, seed), k=count):
            at = rng.choice([cell for cell in cells(self.size) if cell not in [*task.data["walls"], task.data["goal"]]])
            move = rng.choice(list(STEPS))
            pairs.append((verifier_sees(task, at, move), verdict(task, at, move) if rng.random() < good else "yes"))
        return pairs


@quick
def right_verdict(task, turn, episode):  # 1 for a yes to a move that leads nearer to the goal, or a no to another one
    _, at, *_, word = turn.observation[-1]["content"].split()
    return float(turn.action.text.strip() == verdict(task, at, {WORD[move]: move for move in STEPS}[word]))


@hookimpl
def marl_register(registry):
    registry.task("verified-paths", VerifiedPaths)
    registry.workflow("plan-execute-verify", PlanExecuteVerify)
    registry.reward("right-verdict", right_verdict)
