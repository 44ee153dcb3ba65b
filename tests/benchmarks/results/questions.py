"""Questions that no paper answers, as experiments. What was expected, and the settings, are from before the runs."""

import math
from collections.abc import Callable

import numpy as np
from marl_verl_report.arms import curve

from marl_verl.run.reading import Run
from tests.benchmarks.results.claim import SHORT, Arm, Claim, Comparison, steps
from tests.benchmarks.results.dr_mas import DR_MAS, HALF
from tests.benchmarks.results.measures import AREA, DECADES, GREEDY, POINTS, SAMPLING, Measure, largest, log10, of


def arm(name: str, recipe: str, *words: str) -> Arm:
    return Arm(name, [f"recipes/{recipe}/cpu.yaml", *words])


def at_tokens(tokens: int, value: str = "validation/success") -> Callable[[Run], float]:
    """A value of validations, by default greedy success, after a number of sampled tokens, replays included, between
    two validations by interpolation."""

    def of_run(run: Run) -> float:
        sampled, values = curve(run, "train/tokens"), curve(run, value)
        until = [sum(count for at, count in sampled.items() if at <= step) for step in values]
        return float(np.interp(tokens, until, list(values.values())))

    return of_run


TEAM_REWARD = (
    "marl.algorithm.options.rewards.weights.team=1.0",
    "~marl.algorithm.options.rewards.weights.role",
    "~marl.agents.verifier.reward",
)

STOPS = Claim(
    name="stops",
    title="Baselines per turn where the team decides when to stop",
    claim=(
        "a baseline per turn compares only the episodes that got so far, which the policy itself decides. Is it "
        "biased? We expected no effect."
    ),
    setting=(
        "[Second-guess](../recipes/dr_mas/README.md) with the team's reward: the verifier's answer ends the episode "
        "or begins a second round. The same rows are compared per agent (`dr-mas`), per agent and turn "
        "(`at-grpo-sessions`), or as whole episodes (`grpo-trajectory-mean`). `gigpo` needs rewards of single steps."
    ),
    arms=[
        arm("per agent", "dr_mas"),
        arm("per turn", "dr_mas", "--variant", "grpo", "marl.algorithm.name=at-grpo-sessions"),
        arm("whole episodes", "dr_mas", "--variant", "trajectory_mean"),
    ],
    settings=[*steps(20, 5), *SHORT, *HALF, *TEAM_REWARD],
    measures=[GREEDY, AREA, Measure("rounds", "rows of the solver per step", of("mean:agent/solver/rows"))],
    comparisons=[
        Comparison("Groups per turn learn more slowly than groups per agent", "area", "per turn", "per agent", "lower"),
        Comparison(
            "Groups per turn learn more slowly than whole episodes", "area", "per turn", "whole episodes", "lower"
        ),
    ],
)

SINGLETON = Claim(
    name="singleton",
    title="A group of one: the advantage of an agent that acts rarely",
    claim=(
        "an agent that acts rarely has many groups of one row. Its advantage can be 0, the raw reward (Dr. MAS), or "
        "compared with the batch. We expected that the batch teaches it most."
    ),
    setting=(
        "[Second-guess with a reviser](../recipes/dr_mas/README.md), where the prize is in the second box in 7 of 10 "
        "tasks."
    ),
    arms=[
        arm(name, "dr_mas", "--variant", "rare", f"+marl.algorithm.options.advantage.singleton={name}")
        for name in ("raw", "zero", "batch")
    ],
    settings=[*steps(20, 5), *SHORT, "marl.task.options.likely=0.7", "marl.policies.solver.tiny.good=0.7"],
    measures=[
        *(GREEDY, AREA),
        Measure("reviser", "reward of the reviser, last step", of("agent/reviser/reward"), margin=POINTS),
        Measure("singles", "its groups of one", of("mean:agent/reviser/singles"), percent=True),
        Measure("log-largest", "log10 of its largest gradient norm", log10(largest("reviser")), margin=DECADES),
    ],
    comparisons=[
        Comparison("The batch gives a higher success than raw rewards", "success", "batch", "raw"),
        Comparison("Raw rewards give a higher success than 0", "success", "raw", "zero"),
        Comparison("Raw rewards make larger gradients than the batch", "log-largest", "raw", "batch"),
    ],
)

SHARED = Claim(
    name="shared",
    title="One policy for all roles, or one per role",
    claim=(
        "AT-GRPO's authors find that separate policies win where roles differ, and a shared one where they are alike "
        "(arXiv 2510.11062). Both roles here differ."
    ),
    setting="[Boards of 4 x 4](../recipes/at_grpo/README.md): a planner knows the goal, an executor the walls.",
    arms=[arm("one per role", "at_grpo"), arm("one for both", "at_grpo", "--variant", "shared")],
    settings=[*steps(20, 5), *SHORT],
    measures=[GREEDY, SAMPLING, AREA],
    comparisons=[
        Comparison(
            *("One policy per role reaches a higher success", "success", "one per role", "one for both"),
            team="has two roles that differ",
            take="a policy for each",
        )
    ],
)

CREDIT = Claim(
    name="credit",
    title="Kinds of credit at equal sampled tokens",
    claim=(
        "credit for each agent's part teaches more than the team's reward. Replays cost tokens: what counts is the "
        "success after equal tokens, replays included."
    ),
    setting=(
        "[Three ledgers](../recipes/sharp/README.md), success after 16,000 sampled tokens. *Difference reward* is the "
        "outcome minus that of one masked run (leave-one-out, SHARP's), in which what saw the masked act is sampled "
        "again; in the last arm, everything after it."
    ),
    arms=[
        arm("team reward", "sharp", "--variant", "broadcast_only", "marl.algorithm.options.credit=none"),
        arm("difference reward", "sharp"),
        arm("Shapley", "sharp", "--variant", "shapley"),
        arm("sampled Shapley", "sharp", "--variant", "sampled_shapley"),
        arm("difference, sampled again", "sharp", "--variant", "full"),
    ],
    settings=[*("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8"), *(*steps(20, 4), *SHORT)],
    measures=[
        GREEDY,
        Measure("at-tokens", "success after 16,000 tokens", at_tokens(16_000), percent=True, margin=POINTS),
        Measure("tokens", "tokens per step", of("mean:train/tokens")),
    ],
    comparisons=[
        Comparison(f"{name} reaches a higher success than the team's reward", "at-tokens", name, "team reward")
        for name in ("difference reward", "Shapley", "sampled Shapley", "difference, sampled again")
    ],
)

TURNS = Claim(
    name="turns",
    title="Agents that learn in turn",
    claim="partners that do not move at the same time make learning steadier. We expected no effect on the success.",
    setting=(
        "[Rendezvous](../recipes/magrpo/README.md), all with equally many steps and sampled tokens; in turn, an agent "
        "learns in every second step, or in three of six."
    ),
    arms=[
        arm("at once", "magrpo"),
        arm("in turn", "magrpo", "marl.schedule.turns=[[left],[right]]"),
        arm("in turn, 3 steps each", "magrpo", "marl.schedule.turns=[[left],[right]]", "marl.schedule.turn_steps=3"),
    ],
    settings=[*steps(24, 6), *SHORT],
    measures=[GREEDY, SAMPLING, AREA],
    comparisons=[
        Comparison("Learning in turn reaches a higher success", "success", "in turn", "at once"),
        Comparison("Learning in turn is slower", "area", "in turn", "at once", "lower"),
        Comparison("Longer turns are slower", "area", "in turn, 3 steps each", "in turn", "lower"),
    ],
)

SOLVES = {"words": "agent/shifter/reward/team", "byte pairs": "agent/flipper/reward/team"}  # of sampled episodes
SHARED_ROLLOUTS = Claim(
    name="shared-rollouts",
    title="Two models that learn from each other's episodes",
    claim=(
        "policies of different models that also learn from each other's episodes reach the success of each alone with "
        "half of the sampled tokens (HACPO, arXiv 2603.02604)."
    ),
    setting=(
        "[Tests of digits](../recipes/hacpo/README.md), answered by a model whose tokens are words and one with "
        "byte-pair tokens. The arms sample equally many episodes of each, the last twice as many; success is that of "
        "these episodes, on new tasks. The settings were chosen on seed 1000."
    ),
    arms=[
        arm("shared", "hacpo"),
        *(arm(name, "hacpo", "--variant", name) for name in ("alone", "naive")),
        arm("alone, twice the episodes", "hacpo", "--variant", "alone", "marl.sampler.options.episodes=16"),
    ],
    settings=[*steps(40, 40), *SHORT],
    measures=[
        *(
            Measure(
                f"{model}-{tokens}",
                f"{model}: success after {tokens:,} tokens",
                at_tokens(tokens, metric),
                True,
                POINTS,
            )
            for tokens in (20_000, 40_000, 80_000)
            for model, metric in SOLVES.items()
        ),
        Measure("tokens", "sampled tokens per step", of("mean:train/tokens")),
    ],
    comparisons=[
        Comparison(f"The model of {model} reaches a higher success than {second}", f"{model}-80000", "shared", second)
        for second in ("alone", "naive", "alone, twice the episodes")
        for model in SOLVES
    ],
)

FASTER = (*steps(40, 10), "actor_rollout_ref.actor.optim.lr=3e-3", "marl.task.test_size=60", *SHORT[1:])
COVERED = of("validation/agent/agent-1/team")
SCORE = Measure("score", "share of the items that are covered, greedy", COVERED, percent=True, margin=POINTS)
DIFFERENCE = Measure("difference", "difference of the agents' choices", of("team/difference"), margin=0.05)


def cover(name: str, agents: int, policies: int) -> Arm:
    """Cover with a number of agents and items; `policies`: 1, or one each."""
    shared = [] if policies > 1 else ["marl.agents.agent-2.policy=one", "~marl.policies.two"]
    words = [f"marl.task.options.items={agents}", *shared]
    for number in range(3, agents + 1):
        policy = f"p{number}" if policies > 1 else "one"
        words.append(f"+marl.agents.agent-{number}={{policy: {policy}}}")
        words += [f"+marl.policies.{policy}={{frozen: false, tiny: {{steps: 200, good: 0.9}}}}"] if policies > 1 else []
    return Arm(name, ["recipes/games/cover.yaml", *words])


AGENTS = Claim(
    name="agents",
    title="The number of agents",
    claim="the more agents act at once, the noisier is each one's share of the reward. We expected slower learning.",
    setting="[Cover](../recipes/games/README.md): n agents choose one of n items each, without seeing others' choice. "
    "The steps and their size were chosen with four agents on seed 100.",
    arms=[cover(f"{agents} agents", agents, agents) for agents in (2, 4, 8)],
    settings=FASTER,
    measures=[
        *(SCORE, DIFFERENCE),
        Measure("tokens", "sampled tokens per step", of("mean:train/tokens")),
        Measure("seconds", "seconds per step, with other load", of("mean:seconds/step")),
        Measure("read", "tokens that agent 1 reads from others, per act", of("mean:agent/agent-1/read_length")),
    ],
    comparisons=[
        Comparison("Eight agents cover a smaller share than four", "score", "8 agents", "4 agents", "lower"),
        Comparison("Four agents cover a smaller share than two", "score", "4 agents", "2 agents", "lower"),
    ],
)

ROLES = Claim(
    name="roles",
    title="Do roles emerge with one policy and no role prompt?",
    claim=(
        "nothing tells agents with one policy and one prompt apart: no role can emerge. If each has its own policy, "
        "roles emerge by themselves."
    ),
    setting=(
        "[Cover](../recipes/games/README.md) with four agents. *Difference* is 0 if all agents choose with equal "
        "probabilities, whatever these are."
    ),
    arms=[cover("a policy each", 4, 4), cover("one policy", 4, 1)],
    settings=FASTER,
    measures=[SCORE, DIFFERENCE],
    comparisons=[
        Comparison("With a policy each, agents come to differ", "difference", "a policy each", "one policy"),
        Comparison("With a policy each, a team covers more", "score", "a policy each", "one policy"),
        Comparison("With one policy, agents come to differ", "difference", "one policy"),
    ],
)

SIZES = {"one worker": 1, "two workers": 2, "three workers": 3, "four workers": 4}
SPAWNER = Claim(
    name="spawner",
    title="A team that decides how many workers it needs",
    claim=(
        "a planner that spawns as many workers as a task needs reaches a higher score than the best team of a fixed "
        "size at equal sampled tokens, its own included. The score of a solved task is 1, less 0.1 for each worker."
    ),
    setting="[Crew](../recipes/teams/README.md): each task needs one to four workers, and the planner begins with one.",
    arms=[
        Arm("spawner", ["recipes/teams/spawner.yaml"]),
        *(Arm(name, ["recipes/teams/spawner.yaml", "--variant", f"workers_{size}"]) for name, size in SIZES.items()),
    ],
    settings=[*steps(40, 5), *SHORT[1:]],
    measures=[
        Measure("at-tokens", "score after 25,000 tokens", at_tokens(25_000, "validation/answer/score"), margin=0.05),
        Measure("at-more", "score after 50,000 tokens", at_tokens(50_000, "validation/answer/score"), margin=0.05),
        GREEDY,
        Measure("workers", "workers per task", of("validation/answer/workers")),
        Measure("tokens", "tokens per step", of("mean:train/tokens")),
    ],
    comparisons=[
        Comparison(f"After {tokens} tokens the spawner has a higher score than {name}", key, "spawner", name)
        for key, tokens in (("at-tokens", "25,000"), ("at-more", "50,000"))
        for name in SIZES
    ],
    notes=["50,000 tokens were added after 20 steps were seen: in four of ten seeds the planner asked for one worker."],
    most=10,
)

HORIZONS = Claim(
    name="horizons",
    title="Candidates from one state, over longer horizons",
    claim=(
        "groups of candidates from one state matter more the more turns a task has: over long horizons, turn-blind "
        "groups compare acts of different states (arXiv 2510.11062)."
    ),
    setting=(
        "[Boards](../recipes/at_grpo/README.md) that need up to 2, 4, 8 or 16 turns, of 4 x 4, 4 x 4, 5 x 5 and 7 x 7 "
        "cells. The boards were chosen on seed 100. Success is that of sampled acts: greedy ones may walk in a circle."
    ),
    arms=[
        arm(
            *(f"{turns} turns, {name}", "at_grpo", *words, f"marl.workflow.options.turns={turns}"),
            *(f"+marl.task.options.turns={turns}", f"+marl.task.options.size={size}"),
        )
        for turns, size in ((2, 4), (4, 4), (8, 5), (16, 7))
        for name, words in (("AT-GRPO", ()), ("turn-blind", ("--variant", "grpo")))
    ],
    settings=[*steps(20, 5), "marl.task.train_size=512", *SHORT],
    measures=[SAMPLING, GREEDY, Measure("tokens", "sampled tokens per step", of("mean:train/tokens"))],
    comparisons=[
        Comparison(
            f"Over {turns} turns, AT-GRPO reaches a higher success than turn-blind groups",
            *("sampled", f"{turns} turns, AT-GRPO", f"{turns} turns, turn-blind"),
        )
        for turns in (2, 4, 8, 16)
    ],
)

DISTILLED, OF_STUDENT = "recipes/teams/distilled.yaml", "marl.policies.student.teacher"
TAUGHT = 1.0  # success of the teacher acting itself, on seed 1000


def until(share: float) -> Callable[[Run], float]:
    """log2 of the tokens that were sampled before greedy success reached a share of the teacher's, between validations
    by interpolation; of all that were sampled if it never did."""

    def of_run(run: Run) -> float:
        sampled, values = curve(run, "train/tokens"), curve(run, "validation/success")
        until = [sum(count for at, count in sampled.items() if at <= step) for step in values]
        best = np.maximum.accumulate(list(values.values()))
        reached = best[-1] >= share * TAUGHT
        return math.log2(max(1.0, float(np.interp(share * TAUGHT, best, until)) if reached else until[-1]))

    return of_run


DISTILLATION = Claim(
    name="distillation",
    title="A teacher beside or instead of the reward",
    claim=(
        "a student that learns from a better teacher's log-probs of its own samples reaches 80 % of the teacher's "
        "success with at most half of the sampled tokens that it needs with the reward alone (on-policy distillation, "
        "arXiv 2306.13649)."
    ),
    setting=(
        "[Inventory](../recipes/teams/README.md) with one policy for both agents, which has seen demonstrations of "
        "which a fifth is right; the teacher is larger and has seen right ones only, with a success of 100 %. A step "
        "has 16 episodes: this and the other settings were chosen on seeds 1000 and 1001. (Before 2026-11-28: 60 "
        "steps, in which few runs with the reward alone came to 80 %.) 8 of the teacher's tokens are compared or the "
        "reverse KL is a reward of each token. *Tokens* are log2 of those that the student sampled up to 80 % of the "
        "teacher's success, or of all; differences are to half of the reward's, one less."
    ),
    arms=[
        Arm("teacher and reward", [DISTILLED]),
        Arm("teacher alone", [DISTILLED, "--variant", "teacher_alone"]),
        Arm("reverse KL alone", [DISTILLED, "--variant", "teacher_alone", f"{OF_STUDENT}.form=reverse-kl"]),
        Arm("reward alone", [DISTILLED, "--variant", "reward_alone"]),
    ],
    settings=[*steps(120, 3), *SHORT],
    measures=[
        Measure("tokens", "log2 of the tokens to 80 %", until(0.8)),
        *(GREEDY, SAMPLING, AREA),
    ],
    comparisons=[
        Comparison(
            f"{name[0].upper()}{name[1:]}: at most half of the reward's tokens",
            "tokens",
            name,
            "reward alone",
            "lower",
            than=-1.0,
        )
        for name in ("teacher alone", "teacher and reward", "reverse KL alone")
    ],
)

DEMO = "recipes/quickstart/split_plan_path.yaml"
STALENESS = Claim(
    name="staleness",
    title="Rows of older weights",
    claim=(
        "rows that older weights sampled teach less. We expected no loss of success up to one update, and a loss at "
        "eight."
    ),
    setting=(
        "[The demo](../recipes/quickstart/split_plan_path.yaml) with truncated importance sampling. In one process, "
        "rows are as many updates old as batches are sampled ahead. (Planned for Ray until 2026-11-28; no run counted.)"
    ),
    arms=[Arm(f"{ahead} ahead", [DEMO, f"marl.schedule.ahead={ahead}"]) for ahead in (0, 1, 2, 4, 8)],
    settings=[
        *("marl.schedule.mode=async", "+marl.algorithm.options.loss=ppo-clip-tis", "marl.schedule.max_staleness=16"),
        *(*steps(30, 10), *SHORT),
    ],
    measures=[GREEDY, AREA, Measure("staleness", "age of the scout's rows", of("mean:policy/scout/staleness_mean"))],
    comparisons=[
        Comparison(
            *(f"Sampling {ahead} ahead reaches a lower success", "area", f"{ahead} ahead", "0 ahead", "lower"),
            team="samples while it is trained",
            take="as few batches ahead as keep the servers busy" if ahead == 1 else "",
        )
        for ahead in (1, 2, 4, 8)
    ],
)

PER_ROLE = Claim(
    name="per-role",
    title="An algorithm for one role",
    claim=(
        "a role with another algorithm than the rest learns better than all roles with one (an estimator per role, as "
        "in rLLM). We expected a higher success than with either algorithm for both."
    ),
    setting=(
        "[Second-guess](../recipes/dr_mas/README.md) with rewards on different scales, as for Dr. MAS above. The "
        "solver sees the same boxes in all episodes of a task, as GRPO assumes; what the verifier sees depends on the "
        "guess, so that REINFORCE++ compares it with the whole batch."
    ),
    arms=[
        arm("per role", "dr_mas", "--variant", "grpo", "marl.agents.verifier.algorithm=reinforce++"),
        arm("GRPO for both", "dr_mas", "--variant", "grpo"),
        arm("REINFORCE++ for both", "dr_mas", "--variant", "grpo", "marl.algorithm.name=reinforce++"),
        arm("Dr. MAS for both", "dr_mas"),
    ],
    settings=DR_MAS.settings,
    measures=[GREEDY, AREA],
    comparisons=[
        Comparison(f"An algorithm per role reaches a higher success than {second}", "success", "per role", second)
        for second in ("GRPO for both", "REINFORCE++ for both", "Dr. MAS for both")
    ],
)

JUDGED = Claim(
    name="judged",
    title="A judge as a reward of the roles",
    claim=(
        "a coach that scores each act teaches more than the team's reward alone (process rewards, MAPPA, arXiv "
        "2601.23228). Of a judge in place of the team's reward, we expected a lower success."
    ),
    setting=(
        "[Inventory](../recipes/teams/README.md). The coach sees each act and says whether it is right, the judge sees "
        "the answer; both are scripts that are right nine times out of ten. The steps were chosen on seed 1000, where "
        "all arms reach 100 % after 20."
    ),
    arms=[
        Arm("team's reward and coach", ["recipes/teams/judged.yaml", "--variant", "coach"]),
        Arm("judge alone", ["recipes/teams/judged.yaml"]),
        Arm("team's reward", ["recipes/quickstart/inventory.yaml"]),
    ],
    settings=[*steps(12, 3), *SHORT],
    measures=[AREA, GREEDY, SAMPLING],
    comparisons=[
        Comparison(
            *("A coach beside the team's reward reaches a higher success", "area", "team's reward and coach"),
            "team's reward",
            team="has roles whose acts can be scored alone",
            take="a coach as their role reward: [judges](../plugins/judges/README.md)",
        ),
        Comparison("A judge alone reaches a lower success", "area", "judge alone", "team's reward", "lower"),
    ],
)

KEYS = "+marl.algorithm.options.advantage={keys: [team, role], group: [uid, agent]}"
DECOUPLED = Claim(
    name="decoupled",
    title="Each reward component normalised by itself",
    claim=(
        "normalising the sum of several rewards makes different combinations of them alike; if each is normalised in "
        "its group before the sum, all are learnt better (GDPO, arXiv 2601.05242)."
    ),
    setting=(
        "The team's reward and the coach's of [a judge](#a-judge-as-a-reward-of-the-roles), in groups of one agent's "
        "acts for one task. In the last arms one of the two is ten times as large, which changes nothing for GDPO."
    ),
    arms=[
        Arm("each by itself", [*JUDGED.arms[0].words, "marl.algorithm.name=gdpo", KEYS]),
        Arm("their sum", JUDGED.arms[0].words),
        *(
            Arm(f"sum, {name} x 10", [*JUDGED.arms[0].words, f"marl.algorithm.options.rewards.weights.{key}=10"])
            for name, key in (("team", "team"), ("coach", "role"))
        ),
    ],
    settings=JUDGED.settings,
    measures=JUDGED.measures,
    comparisons=[
        Comparison(f"GDPO reaches a higher success than {second}", "area", "each by itself", second)
        for second in ("their sum", "sum, team x 10", "sum, coach x 10")
    ],
)

WEIGHTED = Claim(
    name="session-weight",
    title="Episodes of equal weight in the loss",
    claim="a mean over tokens counts a long episode more than a short one. We expected no effect on the success.",
    setting=(
        "[Second-guess](../recipes/dr_mas/README.md) with the team's reward, where a rejection makes an episode longer "
        "by half, as [above](#baselines-per-turn-where-the-team-decides-when-to-stop)."
    ),
    arms=[
        arm("equal episodes", "dr_mas", "+marl.algorithm.options.advantage.session_weight=tokens"),
        arm("equal tokens", "dr_mas"),
    ],
    settings=STOPS.settings,
    measures=STOPS.measures,
    comparisons=[
        Comparison("Episodes of equal weight reach a higher success", "success", "equal episodes", "equal tokens"),
        Comparison("They learn faster", "area", "equal episodes", "equal tokens"),
    ],
)

QUESTIONS = (
    *(STOPS, SINGLETON, SHARED, ROLES, AGENTS, TURNS, HORIZONS, STALENESS, CREDIT, SPAWNER),
    *(SHARED_ROLLOUTS, DISTILLATION, PER_ROLE, JUDGED, DECOUPLED, WEIGHTED),
)
