"""Opponents: past versions of a policy, which of them a task meets, and their snapshots on disk."""

import copy
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from marl_verl_evaluation.launch import evaluation_config
from marl_verl_evaluation.request import Assignment, Pairing, Request
from marl_verl_evaluation.weights import assign
from marl_verl_leagues.opponent import DECAY, MODEL, SAVED, Opponent, Past, Pool, Snapshots, check, read
from omegaconf import OmegaConf
from safetensors.numpy import save_file

from marl_verl.backend.protocol import Report
from marl_verl.backend.verl.policies import FrozenRuntime
from marl_verl.config.stored import team_of
from marl_verl.errors import MarlError
from marl_verl.run.checkpoint import folders
from marl_verl.team import PolicyConfig, TeamConfig, read_team

MARL: dict[str, Any] = {
    "agents": {
        "first": {"policy": "player", "side": "first"},
        "second": {"opponent": {"of": "player", "pool": "uniform", "size": 3, "every": 2}, "side": "second"},
    },
    "policies": {
        "player": {
            **{"tiny": {"steps": 3}, "loss": "gspo", "pool": "shared"},
            **{"model": {"lora_rank": 8, "trust_remote_code": True}, "rollout": {"top_p": 0.9}},
            "actor": {"optim": {"lr": 1e-5}},
        }
    },
    **{part: {"name": part} for part in ("task", "workflow", "algorithm")},
}


def team() -> TeamConfig:
    return read_team(copy.deepcopy(MARL))


def test_an_opponent_acts_with_a_frozen_policy_of_its_own() -> None:
    found = team()
    assert found.agents["second"].policy == "player-past"
    past = found.policies["player-past"]
    assert (past.frozen, past.loss, past.pool) == (True, None, "shared")
    # of the policy: what servers need, without the adapter, which is merged into each snapshot
    assert past.override == {"model": {"trust_remote_code": True}, "rollout": {"top_p": 0.9}}
    assert found.past == {"player-past": Opponent("player", "uniform", 3, 2)}
    assert found.agents_of("player") == found.agents_of("player-past") == ["first", "second"]  # of one tiny model


def test_prioritised_probabilities_are_those_of_the_equation() -> None:
    found = Pool(Opponent("player", "prioritised", 3, 2), 0)
    for step in (2, 4):
        found.add(step)
    for result in (1, 1, 0.5):
        found.results[0].add(result)
    for result in (1, 0):
        found.results[4].add(result)
    games = 1 + DECAY + DECAY**2
    rates = [(DECAY + DECAY**2 + 0.5) / games, 0.5, DECAY / (1 + DECAY)]
    assert [each.win_rate for each in found.results.values()] == pytest.approx(rates, rel=1e-12)
    weights = np.array([(1 - rate) ** 2 for rate in rates])
    assert found.probabilities() == pytest.approx(weights / weights.sum(), rel=1e-12)
    drawn = Counter(found.choose(f"s1t{i}") for i in range(4000))
    assert [drawn[step] / 4000 for step in (0, 2, 4)] == pytest.approx(weights / weights.sum(), abs=0.05)


class Server(FrozenRuntime):
    """A runtime that notes what it is given."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []

    def load(self, step: int, model: str) -> None:
        self.seen.append((step, model))
        self.step = step


def opponents(run: Path, runtime: Any) -> Past:
    policies = {"player": {"actor_rollout_ref": {"model": {"path": "base", "lora_rank": 0}}}}
    config = OmegaConf.create({"marl": {"run": {"seed": 3}}, "policies": policies})
    return Past(config, team(), SimpleNamespace(runtimes={"player-past": runtime}), run)


def test_a_step_is_sampled_in_rounds_by_snapshot(tmp_path: Path) -> None:
    runtime = Server()
    found = opponents(tmp_path, runtime)
    for step in (2, 4):
        found.pools["player"].add(step)
        (tmp_path / "opponents" / "player" / f"step_{step}" / MODEL).mkdir(parents=True)
    uids = [f"s5t{i:05d}" for i in range(12)]
    rounds = found.rounds(uids)
    assert sorted(position for _, positions in rounds for position in positions) == list(range(12))
    assert [chosen["player"] for chosen, _ in rounds] == [0, 2, 4]  # each once
    for chosen, positions in rounds:
        assert {found.pools["player"].choose(uids[position]) for position in positions} == set(chosen.values())
        found.use(chosen)
        found.use(chosen)  # loaded already
    # the servers begin with step 0
    assert [step for step, _ in runtime.seen] == [2, 4]
    assert runtime.seen[-1][1] == str(tmp_path / "opponents" / "player" / "step_4" / MODEL)
    found.use({"player": 0})
    assert runtime.seen[-1] == (0, "base")

    found.record([Report(uid, uid, successes=[True], outcomes=[{"first": 1.0, "second": -1.0}]) for uid in uids])
    for chosen, _ in rounds:
        assert found.metrics()[f"opponent/player/win_rate/step_{chosen['player']}"] == 1


def test_pools_are_a_part_of_a_checkpoint(tmp_path: Path) -> None:
    found = opponents(tmp_path, Server())
    found.pools["player"].add(2)
    for result in (1, 0.5, 1):
        found.pools["player"].results[0].add(result)
    found.save(tmp_path / "checkpoint" / "opponents", 3)
    other = opponents(tmp_path, Server())
    with pytest.raises(MarlError, match="step_2' is missing"):
        check(tmp_path, tmp_path / "checkpoint", ["player"])
    (tmp_path / "opponents" / "player" / "step_2").mkdir(parents=True)
    check(tmp_path, tmp_path / "checkpoint", ["player"])
    other.load(tmp_path / "checkpoint" / "opponents")
    assert other.pools["player"].results == found.pools["player"].results  # to the digit


def saves(folder: Path) -> None:
    (folder / "huggingface").mkdir(parents=True)
    (folder / "huggingface" / "config.json").write_text("{}")
    save_file({"w": np.ones(3, dtype=np.float32)}, folder / "huggingface" / "model.safetensors")
    (folder / "optim_world_size_1_rank_0.pt").write_text("moments")
    (folder / "extra_state_world_size_1_rank_0.pt").write_text("random state")


def saves_adapter(folder: Path) -> None:
    saves(folder)
    (folder / "huggingface" / "model.safetensors").unlink()
    (folder / "model_world_size_1_rank_0.pt").write_text("adapter")
    (folder / "lora_train_meta.json").write_text(json.dumps({"r": 1, "lora_alpha": 1, "task_type": "CAUSAL_LM"}))


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_snapshot_is_a_model_that_servers_load(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, "player", {"path": "hub/model"})
    snapshots.write(2, saves)
    assert names(snapshots.folder(2)) == {f"{MODEL}/config.json", f"{MODEL}/model.safetensors"}
    with snapshots.loadable(2) as model:
        assert model == str(snapshots.folder(2) / MODEL)
    with snapshots.loadable(0) as model:
        assert model == "hub/model"


def test_a_snapshot_of_an_adapter_has_the_adapter_only(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, "player", {"path": "hub/model"})
    snapshots.write(2, saves_adapter)
    kept = {"huggingface/config.json", "model_world_size_1_rank_0.pt", "lora_train_meta.json"}
    assert names(snapshots.folder(2)) == {f"{SAVED}/{name}" for name in kept}
    assert snapshots.model(2) is None
    assert snapshots.source(2).lora == {"r": 1, "lora_alpha": 1, "task_type": "CAUSAL_LM"}


def test_a_write_that_does_not_end_leaves_the_former_snapshot(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, "player", {"path": "hub/model"})
    snapshots.write(2, saves)

    def dies(folder: Path) -> None:
        saves(folder)
        raise KeyboardInterrupt

    for step in (2, 4):
        with pytest.raises(KeyboardInterrupt):
            snapshots.write(step, dies)
    snapshots.check([0, 2])
    with pytest.raises(MarlError, match="step_4' is missing"):
        snapshots.check([4])
    snapshots.write(4, saves)  # over what was left
    assert sorted(path.name for path in snapshots.root.iterdir()) == ["step_2", "step_4"]


def test_snapshots_stay_while_a_checkpoint_names_them(tmp_path: Path) -> None:
    found = opponents(tmp_path, Server())
    snapshots, mine = found.snapshots["player"], found.pools["player"]
    checkpoint = tmp_path / "checkpoints" / "step_4"
    for step in (2, 4):
        snapshots.write(step, saves)
        mine.add(step)
    found.save(checkpoint / "opponents", 4)
    (checkpoint / "team.json").write_text("{}")
    for step in (6, 8, 10):
        snapshots.write(step, saves)
        mine.add(step)
    found.discard()
    assert {int(path.name[5:]) for path in snapshots.root.iterdir()} == {2, 4, 6, 8, 10}
    assert list(read(checkpoint, "player")) == ["0", "2", "4"]
    folders.discard(checkpoint)
    found.discard()
    assert {int(path.name[5:]) for path in snapshots.root.iterdir()} == {6, 8, 10}


def test_servers_forget_what_they_have_cached_of_the_former_weights() -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    class Method:
        def __init__(self, name: str) -> None:
            self.name = name

        async def remote(self, **options: Any) -> None:
            calls.append((self.name, options))

    methods = ("collective_rpc", "clear_kv_cache", "set_global_steps")
    server = SimpleNamespace(**{name: Method(name) for name in methods})
    replicas = [SimpleNamespace(servers=[server, "of another node"])]
    config = OmegaConf.create({"policies": {"player-past": {"actor_rollout_ref": {}}}})
    devices: Any = SimpleNamespace(lock=lambda name: None)
    runtime = FrozenRuntime(PolicyConfig("player-past", frozen=True), config, {"player-past": devices})
    runtime.servers = SimpleNamespace(get_replicas=lambda: replicas)  # type: ignore[assignment]
    runtime.load(4, "folder")
    assert runtime.step == 4
    reload = {"method": "reload_weights", "kwargs": {"weights_path": "folder"}}
    assert calls == [("collective_rpc", reload), ("clear_kv_cache", {}), ("set_global_steps", {"global_steps": 4})]


def test_an_evaluation_has_the_newest_snapshot_of_its_checkpoint() -> None:
    found = assign(team(), 7, newest={"player": 6})
    assert found == {
        "first": Assignment("player", "trained", "player", 7),
        "second": Assignment("player", "past", "player-past", 6, "opponent"),
    }
    assert found["second"].describe() == "snapshot of step 6"
    assert assign(team(), 0, newest={})["second"] == Assignment("player", "untrained", "player")
    for untrained, newest in (([], {"player": 0}), (["second"], {"player": 6})):
        before = assign(team(), 7, untrained=untrained, newest=newest)["second"]
        assert before == Assignment("player", "untrained", "player-untrained")
    composed = OmegaConf.create(
        {"marl": {**copy.deepcopy(MARL), "pools": {"shared": {}}, "schedule": {}, "run": {}}, "trainer": {}}
    )
    request = Request(0, (Pairing(found),))
    evaluated = team_of(evaluation_config(composed, request, {"player": "now", "player-past": "then"}, None))
    assert evaluated.past == {}
    assert {name: each.override["model"]["path"] for name, each in evaluated.policies.items()} == {
        "player": "now",
        "player-past": "then",
    }
