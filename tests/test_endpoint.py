"""External endpoints: requests to a real server, conversion of its responses, and error messages."""

import asyncio
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from marl_verl_endpoints.client import EndpointClient, check, endpoint_key, reach

from marl_verl.algo.sampling import Independent, Sample
from marl_verl.algo.sampling.context import TaskContext
from marl_verl.algo.sampling.sampler import sample_lines
from marl_verl.backend.rollout.context import PolicySamplingContext, WorkerContext, request_seed
from marl_verl.episode import Act, Action, Workflow
from marl_verl.episode.errors import Limits
from marl_verl.errors import MarlError
from marl_verl.tasks import Task
from marl_verl.team import AgentConfig, Endpoint, Sampling
from tests.chat_client import Always
from tests.chat_server import ChatServer, Reply, completion, models, refused, serving

TASK = Task("t", "2 + 2", {})
DEFAULTS = {"temperature": 0.75, "top_p": 0.5, "top_k": -1}
SAMPLING = {**DEFAULTS, "max_tokens": None, "seed": 7}
ASKED = [{"role": "user", "content": "2 + 2"}]


@contextmanager
def server(reply: Reply | None = None) -> Iterator[ChatServer]:
    """A server that gives one reply to all requests."""
    with serving(lambda request: reply or completion("4"), models("m")) as running:
        yield running


def client(url: str, retries: int = 2, key_variable: str | None = None, **options: Any) -> EndpointClient:
    endpoint = Endpoint(url, "m", key_variable)
    key = endpoint_key("judge", endpoint)
    return EndpointClient("judge", endpoint, key, DEFAULTS, max_tokens=16, retries=retries, **options)


def answer(url: str, **options: Any) -> Action:
    """What a client makes of the server's answer to one request."""

    async def ask() -> Action:
        asking = client(url, **options)
        try:
            return await asking.answer(ASKED, SAMPLING, "u-0", Act("judge", "0", 0, 0, ()))
        finally:
            await asking._client.close()  # its connections belong to this loop

    return asyncio.run(ask())


class Twice(Workflow):
    """The agent answers the task, and then itself."""

    async def run(self, task: Task, team: Any) -> str:
        first = await team["judge"].act(task.prompt)
        return (await team["judge"].act(first.text or "nothing")).text


def sample(url: str, agent: AgentConfig | None = None, limits: Limits | None = None, **options: Any) -> Sample:
    """An episode of an agent whose policy is the endpoint."""

    async def play() -> Sample:
        asking = client(url, **options)
        agents = {"judge": agent or AgentConfig("judge", "outside")}
        task_context = TaskContext(Twice(), Always(), agents, limits=limits or Limits())
        parts = WorkerContext(task_context, {"outside": asking}, seed=5)
        try:
            return await Independent(1).sample(PolicySamplingContext(parts, TASK, "u", 3, None))
        finally:
            await asking._client.close()

    return asyncio.run(play())


def test_a_request_has_the_conversation_the_sampling_and_a_seed() -> None:
    sampling = Sampling(temperature=0.25, max_tokens=8)
    with server() as running:
        sample(running.url, AgentConfig("judge", "outside", instructions="You judge.", sampling=sampling))
        first, second = running.asked
    system = {"role": "system", "content": "You judge."}
    assert first == {
        **{"model": "m", "messages": [system, {"role": "user", "content": "2 + 2"}], "temperature": 0.25},
        **{"top_p": 0.5, "max_tokens": 8, "seed": request_seed(5, 3, "t", 0, "judge", "0", 0)},
    }
    assert second["messages"] == [system, {"role": "user", "content": "4"}]
    assert second["seed"] == request_seed(5, 3, "t", 0, "judge", "1", 0)


def test_the_key_is_that_of_its_variable_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-this-one")
    monkeypatch.setenv("JUDGE_KEY", "secret")
    with server() as running:
        answer(running.url, key_variable="JUDGE_KEY")
        answer(running.url)
        keys = [headers["authorization"] for headers in running.headers]
    assert keys == ["Bearer secret", "Bearer none"]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (refused(429, "too many requests"), "HTTP 429 of /v1/chat/completions: too many requests"),
        (refused(401, "wrong\nkey"), "HTTP 401 of /v1/chat/completions: wrong key"),
        (Reply(f"<style>p {{}}</style>\n<p a=b>no{'<p>' * 500}{'.' * 500}", 404), "HTTP 404 of .*/completions: no "),
        (Reply("<html>hello</html>"), "not a completion .*Check that the url ends in /v1"),
    ],
)
def test_a_rejected_request_is_reported_with_policy_and_address(reply: Reply, message: str) -> None:
    with server(reply) as running, pytest.raises(MarlError, match=message) as error:
        answer(running.url, retries=1)
    assert str(error.value).startswith(f"policy 'judge' at {running.url}: ")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 320


LEAKS = (refused(401, f"Incorrect API key provided: {'sk-very-secret'}."), Reply("<p>sk-very-secret</p>", 502))
LEAKS += (Reply("sk-very-secret"), Reply({"detail": "sk-very-secret"}), Reply('{"sk-very-secret'))
LEAKS += (Reply({"data": [{"name": "m"}]}),)


@pytest.mark.parametrize("reply", LEAKS)
def test_a_key_that_a_server_repeats_is_in_no_error_log_or_journal(
    reply: Reply, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    caplog.set_level("DEBUG")
    with serving(lambda request: reply, reply) as running:
        endpoint = Endpoint(running.url, "m", "JUDGE_KEY")
        for ask in (lambda: answer(running.url, retries=0, key_variable="JUDGE_KEY"), lambda: reach("judge", endpoint)):
            with pytest.raises(MarlError, match="policy 'judge' at") as error:
                ask()
            assert "sk-very-secret" not in "".join(traceback.format_exception(error.value))
        found = sample(running.url, key_variable="JUDGE_KEY", retries=0)
        assert {headers["authorization"] for headers in running.headers} == {"Bearer sk-very-secret"}
    lines = sample_lines(found, "u", "t", tokens=True)
    assert found.failures
    assert "sk-very-secret" not in "\n".join([*lines, found.failures[0].trace, caplog.text])


@pytest.mark.parametrize("key", ["sk secret", "sk\nsecret", "sk-sécret"])
def test_a_key_that_no_header_can_hold_is_refused_without_showing_it(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", key)
    with pytest.raises(MarlError, match="a key of ASCII letters") as error:
        check("judge", Endpoint("http://host/v1", "m", "JUDGE_KEY"))
    assert key not in str(error.value)


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        *((f"http://{user}@host/v1", None) for user in ("me:sk-very-secret", "sk-very-secret")),
        ("http://host/v1?api_key=sk-very-secret", None),
        ("http://host/v1", "sk-very-secret"),
    ],
)
def test_a_secret_in_the_config_is_refused_without_showing_it(url: str, variable: str | None) -> None:
    with pytest.raises(MarlError) as error:
        check("judge", Endpoint(url, "m", variable))
    assert "sk-very-secret" not in "".join(traceback.format_exception(error.value))


def test_the_limit_of_an_act_holds_for_all_tries() -> None:
    with server(Reply(refused(503, "busy").body, 503, {"retry-after": "8"})) as running:
        (failure,) = sample(running.url, limits=Limits(act_seconds=1.5)).failures
    assert (failure.reason, len(running.asked)) == ("timeout", 1)
    assert "no action within 1.5 s (marl.rollout.act_seconds)" in failure.detail
