"""The connection to a running Ray cluster: its token, what it is sent, and what is wrong when there is none."""

import os
import socket
from concurrent.futures import Future
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from marl_verl.backend.verl import session
from marl_verl.backend.verl.session import check_slots, connect, first_worker, send_token
from marl_verl.errors import MarlError
from marl_verl.plugins.one_file import FILES_VARIABLE
from marl_verl.team import Endpoint

MODE = "RAY_AUTH_MODE"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a token."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (MODE, "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    return tmp_path


def test_a_token_is_sent_unless_the_user_chooses_otherwise(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send_token()
    assert MODE not in os.environ
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("0" * 64)
    send_token()
    assert os.environ[MODE] == "token"
    monkeypatch.setenv(MODE, "disabled")
    send_token()
    assert os.environ[MODE] == "disabled"


def test_no_cluster_at_the_address_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(MarlError, match=rf"no Ray cluster answers \(ray_kwargs.ray_init.address=127.0.0.1:{port}\): "):
        connect(f"127.0.0.1:{port}")


def test_a_run_ends_whose_workers_do_not_start() -> None:
    with pytest.raises(RuntimeError, match=r"no worker in 0\.1 s: workers end"):
        first_worker(Future(), 0.1)


def test_two_runs_do_not_share_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would share one TransferQueue, in which their rows have the same keys."""
    named: list[tuple[str, str]] = []
    monkeypatch.setattr("ray.get_actor", lambda name, namespace: named.append((name, namespace)))
    with pytest.raises(MarlError, match=r"another run uses the Ray cluster .*Wait until that run has ended"):
        check_slots(OmegaConf.create({"ray_kwargs": {"ray_init": {"address": "auto"}}}))
    assert named == [("TransferQueueController", "transfer_queue")]


@pytest.mark.slow
def test_a_cluster_gets_plugin_files_and_network_settings_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray shows variables of a runtime environment in its logs and in the process list of every node."""
    sent: dict[str, str] = {}
    monkeypatch.setattr(session, "connect", lambda address, runtime_env: sent.update(runtime_env["env_vars"]))
    monkeypatch.setattr(session, "check_slots", lambda config: None)
    judges = {name: Endpoint("http://host/v1", "m", name) for name in ("JUDGE_KEY", "NCCL_KEY")}  # forwarded: NCCL_
    monkeypatch.setattr(session, "endpoints", lambda config: judges)
    variables = {"NCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth2", FILES_VARIABLE: "contents of files"}
    for name, value in {**variables, **dict.fromkeys(judges, "sk-very-secret")}.items():
        monkeypatch.setenv(name, value)
    address = {"ray_kwargs": {"ray_init": {"address": "auto"}}, "transfer_queue": {"enable": True}}
    session.start_ray(OmegaConf.create(address))
    assert {name: sent[name] for name in variables} == variables
    assert "sk-very-secret" not in sent.values()
