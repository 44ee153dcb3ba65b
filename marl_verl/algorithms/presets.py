"""The presets that are built of the core's parts alone: GRPO, REINFORCE++, IPPO and MAPPO.

All of them sample independent episodes, add up the reward components, credit nobody in particular and take PPO's
clipped loss: the defaults of `Algorithm`.
"""

from __future__ import annotations

from marl_verl.advantage import BATCH, GAE, TASK, Advantage
from marl_verl.algorithms import Algorithm

GRPO = Algorithm(advantage=Advantage(sample="row", group=TASK, singleton="raw"))
"""A = (r - mean_uid) / (std_uid + 1e-6).

Compared: every row with every row of its task, whoever acted and when. Its premise is that the group shares one prompt;
in a team it does not, which makes it the baseline ("turn-blind groups") that the other methods improve on. Source:
arXiv 2402.03300, verl's `compute_grpo_outcome_advantage`.
"""

GRPO_TRAJECTORY_MEAN = Algorithm(advantage=Advantage(sample="session_mean", group=TASK, singleton="raw"))
"""A = (r_session - mean_uid) / (std_uid + 1e-6), the same for every row of a session.

Compared: whole episodes of one task. A session's reward is the mean over its rows, and it counts once, however many
turns it has. It cannot tell which agent or turn did well. Source: the global baseline of Dr. MAS's code, arXiv
2602.08847.
"""

REINFORCE_PP = Algorithm(advantage=Advantage(group=BATCH, eps=1e-8, singleton="zero"))
"""A = (r - mean_batch) / (std_batch + 1e-8).

Compared: every row with every row of the batch, over tasks, agents and turns. Source: REINFORCE++, arXiv 2501.03262.
verl's `reinforce_plus_plus` whitens over tokens, so that a long response weighs more; here a row is one sample, as
everywhere in this package. With responses of one length the two agree.
"""

IPPO = Algorithm(advantage=Advantage(returns=GAE(critic="policy"), group=("agent",), eps=1e-8, singleton="raw"))
"""A = (GAE - mean_agent) / (std_agent + 1e-8).

Compared: a turn with what the policy's critic expected of its observation; then scaled over all rows of the agent in
the batch. Nothing is compared within a task, so that one attempt a task is enough. Source: IPPO, arXiv 2011.09533; GAE,
arXiv 1506.02438.
"""

MAPPO = Algorithm(advantage=Advantage(returns=GAE(critic="team"), group=("agent",), eps=1e-8, singleton="raw"))
"""A = (GAE - mean_agent) / (std_agent + 1e-8), the critic's V of the joint observation.

Compared: a turn with what the team's critic expected of what all agents had seen by then. Source: MAPPO, arXiv
2103.01955.
"""
