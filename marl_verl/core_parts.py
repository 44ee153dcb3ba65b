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
    },
    "returns": {
        "immediate": "marl_verl.advantage.returns:Immediate",
        "discounted": "marl_verl.advantage.returns:Discounted",
        "path_sum": "marl_verl.advantage.returns:PathSum",
        "tree_mean": "marl_verl.advantage.returns:TreeMean",
        "gae": "marl_verl.advantage.gae:GAE",
    },
    "groups": {
        name: f"marl_verl.advantage.groups:{name.upper()}"
        for name in ("batch", "task", "agent", "turn", "siblings", "observation")
    },
    "baselines": {
        "mean": "marl_verl.advantage.baselines:Mean",
        "leave-one-out": "marl_verl.advantage.baselines:LeaveOneOut",
        "max": "marl_verl.advantage.baselines:Max",
        "none": "marl_verl.advantage.baselines:NoBaseline",
    },
    "scales": {
        "unbiased": "marl_verl.advantage.normalise:Unbiased",
        "population": "marl_verl.advantage.normalise:Population",
    },
}
