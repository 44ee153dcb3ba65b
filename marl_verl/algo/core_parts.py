"""Names of the parts of an algorithm that come with marl-verl: kind -> name -> "package.module:attribute".

A name is resolved here wherever a part is an argument, and the plugins register the same table for recipes. Groups,
baselines and scales are nothing but arguments: no plugin registers one, and an author passes the object.
"""

from collections.abc import Mapping

CORE_PARTS: Mapping[str, Mapping[str, str]] = {
    "mixes": {"weights": "marl_verl.algo.rewards.mix:Mix"},
    "credits": {
        "none": "marl_verl.algo.credit:NoCredit",
        "c3": "marl_verl.algo.credit:C3",
        "step-groups": "marl_verl.algo.credit:StepGroups",
    },
    "advantages": {
        "advantage": "marl_verl.algo.advantage:Advantage",
        "group-in-group": "marl_verl.algo.algorithms.gigpo:GroupInGroup",
        "greedy": "marl_verl.algo.algorithms.remax:Greedy",
        "decoupled": "marl_verl.algo.algorithms.gdpo:Decoupled",
    },
    "returns": {
        "immediate": "marl_verl.algo.advantage.returns:Immediate",
        "discounted": "marl_verl.algo.advantage.returns:Discounted",
        "path_sum": "marl_verl.algo.advantage.returns:PathSum",
        "tree_mean": "marl_verl.algo.advantage.returns:TreeMean",
        "gae": "marl_verl.algo.advantage.returns:GAE",
    },
    "groups": {
        "batch": "marl_verl.algo.advantage.groups:BATCH",
        "task": "marl_verl.algo.advantage.groups:TASK",
        "agent": "marl_verl.algo.advantage.groups:AGENT",
        "turn": "marl_verl.algo.advantage.groups:TURN",
        "siblings": "marl_verl.algo.advantage.groups:SIBLINGS",
        "observation": "marl_verl.algo.advantage.groups:OBSERVATION",
    },
    "baselines": {
        "mean": "marl_verl.algo.advantage.compare:Mean",
        "leave-one-out": "marl_verl.algo.advantage.compare:LeaveOneOut",
        "max": "marl_verl.algo.advantage.compare:Max",
        "none": "marl_verl.algo.advantage.compare:NoBaseline",
    },
    "scales": {
        "unbiased": "marl_verl.algo.advantage.compare:Unbiased",
        "population": "marl_verl.algo.advantage.compare:Population",
        "nonzero": "marl_verl.algo.advantage.compare:NonZero",
    },
}
