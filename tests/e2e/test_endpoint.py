"""A team with one agent outside: vLLM's own OpenAI server answers for it, and the other agent is trained.

The server requires a key, which must appear nowhere; and a function of the user scores the answers. MARL_VERL_LONG=1.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from marl_verl_tiny.model import TinyModel, ensure

from marl_verl.backend.verl.devices import rendezvous_ports
from marl_verl.testing.real import rows
from tests.e2e.conftest import Finished, left_running, long, train

pytestmark = [pytest.mark.e2e, long]  # tests/test_endpoint.py has the client against a server of its own

STEPS, BATCH, SESSIONS, HELD_OUT = 3, 8, 8, 20
START_SECONDS = 180
KEY, VARIABLE = "a-key-that-nobody-may-see", "HOLDER_KEY"
REWARD = """
def score(data_source, solution_str, ground_truth, extra_info):
    return 0.25 * (sum(map(ord, solution_str)) % 2)
"""
SERVER = {  # what vLLM needs on a CPU, as in a run's own processes
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True)
class Outside:
    """vLLM's server: where it is, and what it writes."""

    url: str
    log: Path

    @property
    def health(self) -> str:
        """Where it says, without a key, that it runs."""
        return f"{self.url.removesuffix('/v1')}/health"

    @property
    def answered(self) -> int:
        """Chat requests that got an answer."""
        return self.log.read_text().count('"POST /v1/chat/completions HTTP/1.1" 200')

    @property
    def refused(self) -> int:
        """Those that did not."""
        return self.log.read_text().count('"POST /v1/chat/completions') - self.answered


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    """A server of the holder's model."""
    model = ensure(TinyModel(task="inventory", agents=["holder"], seed=1, steps=200, good=0.2))
    port, _ = rendezvous_ports()  # vLLM takes its time to listen: no connection may get it meanwhile
    found = Outside(f"http://127.0.0.1:{port}/v1", tmp_path_factory.mktemp("outside") / "server.log")
    options = {"model": model, "served-model-name": "holder", "host": "127.0.0.1", "port": port, "dtype": "float32"}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", "--max-model-len=64"]
    with found.log.open("wb") as log:
        server = subprocess.Popen(
            command + [f"--{name}={value}" for name, value in options.items()],
            env={**os.environ, **SERVER, "VLLM_API_KEY": KEY},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_for(server, found)
        yield found
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(timeout=20)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_for(server: subprocess.Popen, found: Outside) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(found.health, timeout=2):
            return
        time.sleep(0.5)
    pytest.fail(f"vLLM's server did not start:\n{found.log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def trained(outside: Outside, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Three steps of the inventory recipe, whose holder is outside."""
    before = left_running()  # the server's own processes
    place = tmp_path_factory.mktemp("runs")
    (place / "my_reward.py").write_text(REWARD)
    done = train(
        place / "outside",
        "marl.policies.holder.tiny=null",
        f"marl.policies.holder.endpoint={{url: '{outside.url}', model: holder, key_variable: {VARIABLE}}}",
        f"marl.task.reward='{place / 'my_reward.py'}:score'",
        *(f"trainer.{name}={STEPS}" for name in ("total_training_steps", "test_freq", "save_freq")),
        *(f"data.train_batch_size={BATCH}", f"actor_rollout_ref.actor.ppo_mini_batch_size={BATCH}"),
        "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
        *(f"marl.sampler.options.episodes={SESSIONS}", f"marl.task.test_size={HELD_OUT}"),
        **{VARIABLE: KEY},
    )
    assert done.code == 0, done.output
    return replace(done, left=list((Counter(left_running()) - Counter(before)).elements()))


def test_every_act_of_the_agent_was_one_request(trained: Finished, outside: Outside) -> None:
    assert [line["train/failed_episodes"] for line in trained.lines("train/success")] == [0.0] * STEPS
    training = STEPS * BATCH * SESSIONS
    validations = 2 * 2 * HELD_OUT  # greedily and sampled, before and after
    assert (outside.answered, outside.refused) == (training + validations, 0)


def test_the_other_agents_policy_has_learnt(trained: Finished) -> None:
    assert trained.summary["policies"]["asker"]["weight_change"] > 1e-4
    saved = trained.folder / trained.summary["checkpoint"] / "policies"
    assert [path.name for path in saved.iterdir()] == ["asker"]


def test_rows_have_the_lengths_that_the_server_counted(trained: Finished) -> None:
    for step, line in enumerate(trained.lines("train/success"), start=1):
        stored = rows(trained.folder, step)
        keys = {(row["uid"], row["session"], row["index"]) for row in stored}
        assert len(keys) == len(stored) == BATCH * SESSIONS * 2
        lengths = [row["length"] for row in stored if row["policy"] == "holder"]
        assert len(lengths) == BATCH * SESSIONS
        assert line["agent/holder/response_length"] == pytest.approx(sum(lengths) / len(lengths))
        text = (trained.folder / "journals" / f"step_{step:05d}.jsonl").read_text()
        acts = [act for each in text.splitlines()[1:] for act in json.loads(each)["journal"]["records"]]
        assert sorted(act["action"]["tokens"] for act in acts if act["agent"] == "holder") == sorted(lengths)
        assert not any(name.startswith("policy/holder/") for name in line)


def test_the_key_is_in_no_file_or_output(trained: Finished) -> None:
    """The server answers nobody who lacks it."""
    assert KEY not in trained.output
    files = [path for path in trained.folder.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in _content(path)] == []
    assert any(VARIABLE.encode() in _content(path) for path in files)


def _content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def test_the_users_function_scores_the_answers(trained: Finished) -> None:
    for line in trained.lines("train/success"):
        assert line["train/success"] == 0.0  # which takes a score of 1
        assert 0.0 < line["agent/asker/reward"] < 0.25


def test_nothing_of_the_run_is_left_running(trained: Finished, outside: Outside) -> None:
    assert trained.left == []
    with urllib.request.urlopen(outside.health, timeout=5) as response:  # the server is not ours to end
        assert response.status == 200
