"""What the agents of a run against snapshots of a policy said, and with which weights."""

import json
from collections import defaultdict
from typing import Any

import pytest
from marl_verl_testing.real import Finished

Said = dict[tuple[str, int], dict[tuple[str, str], list[float]]]


def said(run: Finished) -> tuple[Said, dict[int, list[tuple[str, int]]]]:
    """((agent, version of its policy) -> (prompt, response) -> log-probs; step -> (task, version of its opponent))."""
    log_probs: Said = defaultdict(dict)
    met: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for path in sorted((run.folder / "journals").iterdir()):
        for line in path.read_text().splitlines()[1:]:
            episode = json.loads(line)
            for record in episode["journal"]["records"]:
                action: dict[str, Any] = record["action"]
                who, tokens = (record["agent"], action["version"]), (action["prompt_ids"], action["response_ids"])
                former = log_probs[who].setdefault((str(tokens[0]), str(tokens[1])), action["log_probs"])
                # of one version there is one distribution, in every round and step
                assert action["log_probs"] == pytest.approx(former, abs=1e-5), who
                if record["agent"] == "second":
                    met[int(path.name[5:10])].append((episode["uid"], action["version"]))
    return log_probs, met


def check_snapshots(run: Finished) -> None:
    """The opponent is what the policy was, and both change only when they should."""
    log_probs, met = said(run)
    compared = set()
    for (agent, version), actions in log_probs.items():
        if agent == "second":
            policy = log_probs["first", version]
            for tokens in actions.keys() & policy.keys():
                assert actions[tokens] == pytest.approx(policy[tokens], abs=1e-4), (version, tokens)
                compared.add(version)
    assert len(compared) >= 3
    # in every step the policy has the weights of the step before, whatever snapshots were loaded meanwhile
    assert {version for agent, version in log_probs if agent == "first"} == set(range(6))
    changed = [
        abs(one[0] - log_probs["second", version + 1][tokens][0])
        for (agent, version), actions in log_probs.items()
        if agent == "second" and ("second", version + 1) in log_probs
        for tokens, one in actions.items()
        if tokens in log_probs["second", version + 1]
    ]
    assert max(changed) > 1e-2  # else the test could not detect whether a server has other weights
    for step, pairs in met.items():
        assert len(dict(pairs)) == len(set(pairs))  # one snapshot a task
        assert {version for _, version in pairs} <= set(range(max(0, step - 3), step))
    assert max(len({version for _, version in pairs}) for pairs in met.values()) >= 2  # several rounds in a step
