"""Which policies go where, and the arithmetic when they do not fit."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from marl_verl.config.hardware import HARDWARE_VARIABLE, has_accelerator
from marl_verl.config.placement import Pool, check_cpus, check_placement, check_room, pools_of, ray_cpus
from marl_verl.errors import MarlError
from marl_verl.team import TeamConfig, read_team

ROLLOUT = {
    **{"tensor_model_parallel_size": 1, "data_parallel_size": 1, "pipeline_model_parallel_size": 1},
    **{"gpu_memory_utilization": 0.5, "free_cache_engine": True, "agent": {"num_workers": 1}},
}


def case(policies: dict[str, Any], pools: Any = None, **trainer: Any) -> tuple[DictConfig, TeamConfig]:
    marl = {
        **{"run": {}, "agents": {f"agent-{name}": {"policy": name} for name in policies}, "policies": policies},
        **{"pools": pools or {}, "task": {"name": "t"}, "workflow": {"name": "w"}, "algorithm": {"name": "a"}},
    }
    config = {
        "marl": marl,
        "trainer": {"n_gpus_per_node": 1, "nnodes": 1, "device": "cuda" if has_accelerator() else "cpu", **trainer},
        "actor_rollout_ref": {"rollout": ROLLOUT},
        "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 2}}},
        "ray_kwargs": {"ray_init": {"num_cpus": None}},
    }
    return OmegaConf.create(config), read_team(marl)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two of them."""
    monkeypatch.setenv(HARDWARE_VARIABLE, "gpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")


def test_a_policy_has_a_pool_of_its_own_or_the_one_it_names() -> None:
    config, team = case(
        {"a": {"pool": "big"}, "b": {}, "c": {"pool": "big"}, "d": {"endpoint": {"url": "http://x/v1", "model": "m"}}},
        {"big": {"gpus": 4, "nodes": 2}},
        n_gpus_per_node=2,
    )
    assert pools_of(config, team) == [Pool("big", 4, 2, ("a", "c"), True), Pool("b", 2, 1, ("b",), False)]
    assert [pool.size for pool in pools_of(config, team)] == [8, 2]


@pytest.mark.usefixtures("gpus")
def test_more_policies_than_gpus_with_the_sum() -> None:
    config, team = case({"a": {}, "b": {}, "c": {"pool": "wide"}}, {"wide": {"gpus": 2}})
    message = r"the policies need 1 \(a\) \+ 1 \(b\) \+ 2 \(c\) = 4 GPUs, but this machine has 2: .*colocate policies"
    with pytest.raises(MarlError, match=message):
        check_placement(config, team)
    check_placement(*case({"a": {}, "b": {}}))
    check_placement(*case({"a": {}, "b": {}, "c": {}}, device="npu"))


@pytest.mark.usefixtures("gpus")
def test_servers_on_one_pool_share_its_memory() -> None:
    pools = {"both": {"gpus": 1}}
    fits = {"a": {"pool": "both"}, "b": {"pool": "both", "rollout": {"gpu_memory_utilization": 0.4, "new": 1}}}
    check_placement(*case(fits, pools))
    for rollout, message in (
        ({"gpu_memory_utilization": 0.6}, "'both' would take 0.5 (a) + 0.6 (b) = 1.10 of each GPU's memory"),
        ({"free_cache_engine": False}, "policy 'b' shares pool 'both', where servers must"),
        ({"enable_sleep_mode": False}, "leave its rollout.free_cache_engine and rollout.enable_sleep_mode on"),
    ):
        rollout = {"gpu_memory_utilization": 0.1, **rollout}
        with pytest.raises(MarlError, match=re.escape(message)):
            check_placement(*case({"a": {"pool": "both"}, "b": {"pool": "both", "rollout": rollout}}, pools))


def test_too_few_cpus_of_ray_are_an_error_and_not_a_wait_for_ever() -> None:
    config, team = case({"a": {}, "b": {"pool": "wide"}, "c": {"pool": "wide"}}, {"wide": {"gpus": 2, "nodes": 2}})
    pools = pools_of(config, team)
    # (3 processes and a server) for each policy and GPU; a rollout worker, two units, a controller, short tasks
    assert ray_cpus(config, pools) == 4 + 2 * 4 * 4 + 1 + 2 + 1 + 1
    check_cpus(config, pools, [20, 21])
    with pytest.raises(MarlError, match=r"the run needs 41 CPUs of Ray, which has 40: start Ray with a larger number"):
        check_cpus(config, pools, [20, 20])
    with pytest.raises(MarlError, match=r"pool 'wide' reserves 12 CPUs of Ray on each of 2 machines, but they have 11"):
        check_cpus(config, pools, [11, 64])


def test_the_nodes_of_a_pool_are_different_machines() -> None:
    two = Pool("a", 2, 2, ("a",), False)
    check_room([two], [2, 2], "Ray has")
    check_room([two, Pool("b", 1, 1, ("b",), False)], [2, 3], "Ray has")
    for nodes, there in (([1, 3], "1 + 3"), ([4], "4")):
        with pytest.raises(MarlError, match=re.escape(f"2 x 2 nodes (a) = 4 GPUs, but Ray has {there}")):
            check_room([two], nodes, "Ray has")


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.lists(st.integers(0, 8), min_size=1, max_size=3))
def test_what_is_let_through_fits(sizes: list[int], nodes: list[int]) -> None:
    """Against trying every way of putting pools of one node on machines."""
    pools = [Pool(f"p{i}", size, 1, (f"p{i}",), False) for i, size in enumerate(sizes)]
    try:
        check_room(pools, nodes, "Ray has")
        fits = True
    except MarlError:
        fits = False
    if fits:
        assert _packs(sizes, nodes)
    elif sum(sizes) > sum(nodes):
        assert not _packs(sizes, nodes)


def _packs(sizes: list[int], nodes: list[int]) -> bool:
    if not sizes:
        return True
    first, *rest = sizes
    return any(
        left >= first and _packs(rest, [*nodes[:i], left - first, *nodes[i + 1 :]]) for i, left in enumerate(nodes)
    )


def test_the_gpus_of_a_cluster_are_not_left_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from marl_verl.backend.verl import session

    monkeypatch.setattr(ray, "get_actor", lambda *_: int("no such actor"))  # ValueError
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 64, "accelerator_type:H100": 1}}])
    monkeypatch.setattr(session, "pools_of", lambda config, team: [])
    monkeypatch.setattr(session, "team_of", lambda config: None)
    config = OmegaConf.create({"trainer": {"device": "cpu"}, "ray_kwargs": {"ray_init": {"address": "auto"}}})
    with pytest.raises(MarlError, match="has accelerators, and this machine has none: add hardware=gpu"):
        session.check_slots(config)
