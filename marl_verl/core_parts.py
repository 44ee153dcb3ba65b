"""Names of the parts of an algorithm that come with marl-verl: kind -> name -> "package.module:attribute".

A name is resolved here wherever a part is an argument, and the plugins register the same table for recipes. Groups,
baselines and scales are nothing but arguments: no plugin registers one, and an author passes the object.
"""

from collections.abc import Mapping

CORE_PARTS: Mapping[str, Mapping[str, str]] = {
    "mixes": {"weights": "marl_verl.rewards.mix:Mix"},
    "credits": {
        "none": "marl_verl.credit:NoCredit",
        "c3": "marl_verl.credit:C3",
        "step-groups": "marl_verl.credit:StepGroups",
    },
    "advantages": {
        "advantage": "marl_verl.advantage:Advantage",
        "group-in-group": "marl_verl.algorithms.gigpo:GroupInGroup",
        "greedy": "marl_verl.algorithms.remax:Greedy",
        "decoupled": "marl_verl.algorithms.gdpo:Decoupled",
    },
    "returns": {
        "immediate": "marl_verl.advantage.returns:Immediate",
        "discounted": "marl_verl.advantage.returns:Discounted",
        "path_sum": "marl_verl.advantage.returns:PathSum",
        "tree_mean": "marl_verl.advantage.returns:TreeMean",
        "gae": "marl_verl.advantage.returns:GAE",
    },
    "groups": {
        "batch": "marl_verl.advantage.groups:BATCH",
        "task": "marl_verl.advantage.groups:TASK",
        "agent": "marl_verl.advantage.groups:AGENT",
        "turn": "marl_verl.advantage.groups:TURN",
        "siblings": "marl_verl.advantage.groups:SIBLINGS",
        "observation": "marl_verl.advantage.groups:OBSERVATION",
    },
    "baselines": {
        "mean": "marl_verl.advantage.compare:Mean",
        "leave-one-out": "marl_verl.advantage.compare:LeaveOneOut",
        "max": "marl_verl.advantage.compare:Max",
        "none": "marl_verl.advantage.compare:NoBaseline",
    },
    "scales": {
        "unbiased": "marl_verl.advantage.compare:Unbiased",
        "population": "marl_verl.advantage.compare:Population",
        "nonzero": "marl_verl.advantage.compare:NonZero",
    },
}
