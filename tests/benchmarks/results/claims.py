"""The experiments, one or more per paper."""

from tests.benchmarks.results import kuhn
from tests.benchmarks.results.claim import KEPT, SHORT, Arm, Claim, Comparison, steps
from tests.benchmarks.results.dr_mas import DR_MAS, DR_MAS_EQUAL, DR_MAS_RARE
from tests.benchmarks.results.marginal import broadcast_correlation, correlation_gap, credit_correlation
from tests.benchmarks.results.measures import AREA, GREEDY, POINTS, SAMPLING, Measure, of
from tests.benchmarks.results.questions import QUESTIONS


def variants(name: str, recipe: str, *names: str) -> Arm:
    """An arm that trains a recipe of recipes/ with variants."""
    return Arm(name, [f"recipes/{recipe}.yaml", *(word for variant in names for word in ("--variant", variant))])


AT_GRPO = Claim(
    name="at-grpo",
    title="AT-GRPO: groups by role and turn",
    claim=(
        "GRPO's group shares no prompt in a team. With groups by task, turn and agent, of candidates from one state, "
        "teams reach a success that neither turn-blind groups nor a single agent reach (arXiv 2510.11062)."
    ),
    setting=(
        "[Boards of 4 x 4](../recipes/at_grpo/README.md): a planner knows the goal, an executor the "
        "walls. The last arm pays 10 more for every plan, so that the roles are on different scales. AT-GRPO "
        "compares candidates of one state, so that this changes none of its advantages: five runs with and without it "
        "were equal to the digit."
    ),
    arms=[
        variants("AT-GRPO", "at_grpo/cpu"),
        variants("turn-blind groups", "at_grpo/cpu", "grpo"),
        variants("single agent", "at_grpo/cpu", "single"),
        variants("turn-blind groups, +10", "at_grpo/cpu", "grpo", "paid"),
    ],
    settings=[*steps(20, 5), *SHORT],
    measures=[GREEDY, SAMPLING, AREA],
    comparisons=[
        Comparison(
            *("AT-GRPO reaches a higher success than turn-blind groups", "success", "AT-GRPO", "turn-blind groups"),
            team="takes turns on one state, with rewards on one scale",
            take="groups of candidates from one state: `at-grpo`",
        ),
        Comparison("AT-GRPO reaches a higher success than a single agent", "success", "AT-GRPO", "single agent"),
        Comparison(
            "Roles on different scales harm turn-blind groups", "success", "turn-blind groups", "turn-blind groups, +10"
        ),
        Comparison(
            "With roles on different scales, AT-GRPO reaches a higher success than turn-blind groups",
            "success",
            "AT-GRPO",
            "turn-blind groups, +10",
            team="takes turns on one state, with rewards on different scales",
            take="groups of candidates from one state: `at-grpo`",
        ),
    ],
)

SHARP = Claim(
    name="sharp",
    title="SHARP: marginal credit",
    claim=(
        "workers that are rewarded with their own marginal contribution, measured by masked runs, learn better than "
        "with the team's reward alone (arXiv 2602.08335, from secondary sources)."
    ),
    setting=(
        "[Three ledgers](../recipes/sharp/README.md): a planner asks three workers, of which one is needed, one "
        "is idle and one is wrong. Both arms measure the credits; only SHARP uses them. The truth is the change of the "
        "planner's probability to answer rightly if one report is taken away, computed from its weights after 10 "
        "steps, for the 64 episodes of step 11."
    ),
    arms=[variants("SHARP", "sharp/cpu"), variants("broadcast only", "sharp/cpu", "broadcast_only")],
    settings=[
        *("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8"),
        *(*steps(20, 5), "marl.task.test_size=100", "trainer.save_freq=10", *KEPT),
    ],
    measures=[
        GREEDY,
        AREA,
        Measure("credit", "correlation of the credit with the truth", credit_correlation),
        Measure("broadcast", "of the team's reward", broadcast_correlation),
        Measure("gap", "difference of the two", correlation_gap, margin=0.1),
        Measure("harmful", "harmful calls, last step", of("worker_calls/harmful"), percent=True, margin=0.02),
        Measure("useful", "useful calls, last step", of("worker_calls/useful"), percent=True),
    ],
    comparisons=[
        Comparison(
            *("SHARP reaches a higher success", "success", "SHARP", "broadcast only"),
            margin=0.14,  # the paper's, over teams without marginal credit
            team="asks workers that may be idle or wrong",
            take="a reward for each worker's own contribution: `sharp`",
        ),
        Comparison("SHARP learns from fewer samples", "area", "SHARP", "broadcast only"),
        Comparison("The credit agrees more with the true contribution than the team's reward", "gap", "SHARP"),
        Comparison("SHARP has fewer harmful calls", "harmful", "SHARP", "broadcast only", "lower"),
    ],
)

MAGRPO = Claim(
    name="magrpo",
    title="MAGRPO: joint training",
    claim=(
        "models that are trained together, with one joint reward and returns over the turns, cooperate better than "
        "models that are trained separately or with the reward of single turns (arXiv 2508.04652)."
    ),
    setting=(
        "[Rendezvous](../recipes/magrpo/README.md): each of two agents knows half of a place, and has to tell it "
        "in the first turn to be rewarded in the second."
    ),
    arms=[
        variants("joint", "magrpo/cpu"),
        Arm("one agent learns", ["recipes/magrpo/cpu.yaml", "marl.policies.right.frozen=true"]),
        variants("turn-blind groups", "magrpo/cpu", "grpo"),
    ],
    settings=[*steps(24, 6), *SHORT],
    measures=[GREEDY, SAMPLING, AREA],
    comparisons=[
        Comparison(
            *("Two agents that learn together reach a higher success than one", "success", "joint", "one agent learns"),
            team="needs a convention between agents",
            take="train all of them together: `magrpo`",
        ),
        Comparison(
            *("Returns over turns reach a higher success", "success", "joint", "turn-blind groups"),
            team="says first what pays off turns later",
            take="returns over turns: `magrpo`",
        ),
    ],
)

MARS2 = Claim(
    name="mars2",
    title="MARS2: two different models",
    claim=(
        "two different models that search one tree per task and refine each other's attempts improve further than two "
        "copies of one model (arXiv 2602.07848)."
    ),
    setting=(
        "[Symbol tests](../recipes/mars2/README.md): a Qwen3 is often right on one kind of test, a Llama on the "
        "other. Success, sampled, is that of a tree of 8 nodes. Steps are synchronous."
    ),
    arms=[variants("two models", "mars2/cpu"), variants("twice the same", "mars2/cpu", "same_model")],
    settings=[*steps(20, 10), *SHORT, "marl.schedule.mode=sync"],
    measures=[
        SAMPLING,
        Measure(
            "gain", "gain over step 0, sampled", of("gain:validation/success_sampled"), percent=True, margin=POINTS
        ),
        Measure("gain-cross", "gain from refining the other's", of("mean:refinement/gain_cross")),
        Measure("gain-own", "gain from refining the own", of("mean:refinement/gain_own")),
        Measure("diversity", "semantic diversity", of("mean:diversity/semantic"), margin=0.05),
    ],
    comparisons=[
        Comparison("Two models reach a higher success", "sampled", "two models", "twice the same"),
        Comparison("Two models improve more", "gain", "two models", "twice the same"),
        Comparison("Attempts of two models are more diverse", "diversity", "two models", "twice the same"),
    ],
)

SELF_PLAY = Claim(
    name="self-play",
    title="SPIRAL: self-play with role-conditioned baselines",
    claim=(
        "when one policy plays both sides of a zero-sum game, a baseline for each role makes training stable, which it "
        "is not without one (arXiv 2506.24119)."
    ),
    setting=(
        "[Kuhn Poker](../recipes/self_play/README.md) from the strategy of a timid beginner. Exploitability is what "
        "the best responses to both sides win on average, in chips per game, computed exactly from the model's "
        "probabilities. "
        "Naive self-play compares both players with the mean of their task (GRPO)."
    ),
    arms=[
        variants("RAE", "self_play/kuhn_cpu"),
        Arm("naive", ["recipes/self_play/kuhn_cpu.yaml", "marl.algorithm.options.advantage=advantage"]),
    ],
    settings=["marl.run.keep_journals=0", "marl.run.keep_rows=0"],
    measures=[
        Measure("before", "exploitability before", kuhn.before),
        Measure("after", "exploitability after", kuhn.after, margin=0.05),
        Measure("ratio", "after / before", kuhn.ratio, margin=0.1),
        Measure("legal", "probability of a legal move, after", kuhn.legal, percent=True),
    ],
    comparisons=[
        Comparison("Exploitability falls below half of the start", "ratio", "RAE", None, "lower", 0.5),
        Comparison(
            *("RAE ends nearer to equilibrium than naive self-play", "after", "RAE", "naive", "lower"),
            team="is one policy on both sides of a zero-sum game",
            take="a baseline per role: RAE",
        ),
    ],
)

PRETRAINED = Claim(
    name="pretrained",
    title="A pretrained team",
    claim="two pretrained language models, one per agent, learn to work together on a CPU (of this project).",
    setting=(
        "Two SmolLM2-135M-Instruct: a reader turns a story into a sum, a calculator sees only the sum. 40 held-out "
        "tasks."
    ),
    arms=[variants("24 steps", "quickstart/pretrained")],
    measures=[
        GREEDY,
        SAMPLING,
        Measure("gain", "gain over step 0, greedy", of("gain:validation/success"), percent=True, margin=POINTS),
    ],
    comparisons=[Comparison("Training raises the success of a pretrained team", "gain", "24 steps")],
    notes=[
        "Seeds 0 to 2 are the runs of [Benchmarks](benchmarks.md#two-pretrained-models), of an earlier version, on two "
        "cores with AMX: 32 s a step. Seeds 3 and 4 ran on two cores with AVX-512 and without AMX: 77 s a step (median "
        "of seed 4, which ran alone on the machine)."
    ],
    most=5,
    backend="verl",
)

CLAIMS = (AT_GRPO, DR_MAS, DR_MAS_EQUAL, DR_MAS_RARE, SHARP, MAGRPO, MARS2, SELF_PLAY, PRETRAINED, *QUESTIONS)
