"""The backend of a run in this process: each policy samples with the weights that it trains, in one event loop."""

import asyncio
import gc
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from inspect import getfile
from typing import Any, TypeVar

import torch

from marl_verl_local import one_rank  # before other modules that import verl.workers

# isort: split
from omegaconf import DictConfig, OmegaConf
from transformers import AutoModelForCausalLM
from verl.utils import hf_tokenizer
from verl.utils.device import get_device_id
from verl.utils.torch_dtypes import PrecisionType

from marl_verl.backend.learning.batches import jagged, rows_of_nested
from marl_verl.backend.learning.critic import Critic
from marl_verl.backend.learning.policy import LearningPolicy
from marl_verl.backend.policies import Policies
from marl_verl.backend.protocol import Backend, Column, Host, Report, RowStore, Runtime, TaskRow
from marl_verl.backend.rollout.blocked import end_if_blocked
from marl_verl.backend.rollout.worker import RolloutWorker, Tensors, collect_seldom
from marl_verl.config.hardware import cpu_run
from marl_verl.config.placement import uses_all_cores
from marl_verl.config.stored import team_of
from marl_verl.errors import MarlError
from marl_verl.events import Phases, emit
from marl_verl.team import PolicyConfig
from marl_verl.threads import raise_in
from marl_verl_local.engine import LocalCritic, LocalWorkers
from marl_verl_local.interrupts import interrupted_at_once, reported_unless_interrupted
from marl_verl_local.server import LocalServer

K = TypeVar("K")
T = TypeVar("T")


@contextmanager
def opened(config: Any, phase: Phases, host: Host) -> Iterator[Backend]:
    emit("phase", name="loading models")
    models = [section.actor_rollout_ref.model.path for section in config.policies.values()]
    with _process(small=cpu_run() and not any(map(uses_all_cores, models))):
        store = MemoryStore()
        policies = LocalPolicies(config, team_of(config), store)
        policies.start()
        emit("started")
        with asyncio.Runner() as runner:  # one event loop for all: clients of endpoints keep their connections
            runner.get_loop().set_exception_handler(reported_unless_interrupted)
            yield Backend(policies, LocalRollouts(config, policies.clients(), store, runner), store)


@contextmanager
def _process(small: bool) -> Iterator[None]:
    """Settings of this process, which is a user's own; all as before at the end. `small`: all models are small."""
    threads, thresholds = torch.get_num_threads(), gc.get_threshold()
    if small:
        torch.set_num_threads(1)  # several threads wait for each other longer than they compute
    collect_seldom()
    try:
        with interrupted_at_once():
            yield
    finally:
        one_rank.leave()
        torch.set_num_threads(threads)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class LocalRollouts(RolloutWorker):
    """Rollouts in this thread. Ctrl-C ends what is being played."""

    caught = (Exception, SystemExit)

    def __init__(self, config: Any, clients: Mapping[str, Any], store: RowStore, runner: asyncio.Runner) -> None:
        super().__init__(config, clients, store)
        self._runner, self._thread = runner, threading.get_ident()
        self._begun: list[asyncio.Task[tuple[Report, Tensors]]] = []  # tasks of `dispatch` that are in flight
        self._reason: str | None = None  # why the loop was interrupted
        end_if_blocked(runner.get_loop(), config.marl.rollout, self._interrupt, getfile(LocalServer))

    def _interrupt(self, reason: str) -> None:
        self._reason = reason
        if self._thread == threading.main_thread().ident:  # there it interrupts also what waits in C
            signal.pthread_kill(self._thread, signal.SIGINT)
        else:
            raise_in(self._thread, KeyboardInterrupt)

    def sample(self, tasks: Sequence[TaskRow], step: int, validate: bool = False) -> list[Report]:
        return self.stored(self._run(lambda: asyncio.gather(*(self.play(task, step, validate) for task in tasks))))

    def dispatch(self, task: TaskRow, step: int) -> None:
        """Begin a task, as `Stream` of marl-verl-asynchronous; it is played while `finished` waits."""
        self._begun.append(self._runner.get_loop().create_task(self.play(task, step, False)))

    def finished(self, updates: Sequence[Future[Any]]) -> list[Report]:
        """Play until a task is finished, unless there are `updates`, which are done. Returns all that are finished."""
        if self._begun and not updates:
            self._run(lambda: asyncio.wait(self._begun, return_when=asyncio.FIRST_COMPLETED))
        played = [task.result() for task in self._begun if task.done()]
        self._begun = [task for task in self._begun if not task.done()]
        return self.stored(played)

    def gate(self, policy: str, change: str) -> None:
        self._run(getattr(self.parts.gates[policy], change))

    @staticmethod
    def beside(name: str, work: Callable[[], T]) -> Future[T]:
        """Run an update, while no task is played."""
        (result := Future[T]()).set_result(work())
        return result

    def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        results: list[T] = []

        async def run() -> None:  # without a result, of which `Runner.run` would make a text
            results.append(await work())

        try:
            self._runner.run(run())
        except BaseException as error:
            if self._reason is not None:
                raise MarlError(self._reason) from error
            raise
        return results[0]


class TrainedPolicy(LearningPolicy):
    """A trained policy, and the critics beside it."""

    workers: LocalWorkers
    server: LocalServer

    def start(self) -> None:
        torch.manual_seed(self.seed)  # of new adapters
        self.workers = LocalWorkers(self._arr, self._reference and not self._lora)
        self.workers.init_model()
        self.set_losses()
        self.server, self.sleeps = server_of(self.workers.actor.engine.module, self._arr), True  # no act during updates
        for critic in self.critics:
            critic.start(LocalCritic(critic.training()[0]))

    def client(self) -> LocalServer:
        return self.server

    def sync(self, version: int) -> None:
        self.server.version = version  # the weights are those of the sampler already


class FrozenPolicy(Runtime):
    """A policy that acts and never learns; or the past versions of one, with one snapshot at a time, of step `step`."""

    step = 0

    def __init__(self, policy: PolicyConfig, config: DictConfig) -> None:
        super().__init__(policy)
        self._arr = config.policies[policy.name].actor_rollout_ref

    def start(self) -> None:
        one_rank.join()
        self.model = load_model(str(self._arr.model.path), self._arr)
        self.server = server_of(self.model, self._arr)
        if self.policy.past is not None:
            self.server.version = self.step

    def client(self) -> LocalServer:
        return self.server

    def load(self, step: int, model: str) -> None:
        """Load a snapshot from a folder; actions report its step from now on. No request may be in flight."""
        self.model.load_state_dict(load_model(model, self._arr).state_dict())
        self.server.version = self.step = step


class LocalPolicies(Policies):
    """`Policies` that compute one after another, each with all cores or the GPU."""

    critic, frozen, learner = Critic, FrozenPolicy, TrainedPolicy
    shares_base = False

    @staticmethod
    def together(calls: Mapping[K, Callable[[], T]]) -> dict[K, T]:
        return {name: call() for name, call in calls.items()}


def load_model(path: str, settings: DictConfig) -> torch.nn.Module:
    """A model that only samples, with the data type and the attention of the policy's settings."""
    options: Any = OmegaConf.to_container(settings.model.override_config)
    options |= {"dtype": PrecisionType.to_dtype(settings.rollout.dtype)}
    options |= {"trust_remote_code": settings.model.trust_remote_code}
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(path, **options)
    return model.to(get_device_id())


def server_of(model: torch.nn.Module, settings: DictConfig) -> LocalServer:
    """The sampler of a model, with the limits of the policy's settings (`actor_rollout_ref`)."""
    rollout, source = settings.rollout, settings.model
    tokenizer = hf_tokenizer(str(source.tokenizer_path or source.path), trust_remote_code=source.trust_remote_code)
    longest = rollout.max_model_len or rollout.prompt_length + rollout.response_length
    dtype = PrecisionType.to_dtype(rollout.dtype)
    return LocalServer(model, tokenizer, int(longest), max_requests=int(rollout.max_num_seqs or 256), dtype=dtype)


class MemoryStore:
    """A `RowStore`."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, torch.Tensor]] = {}

    def put(self, keys: Sequence[str], fields: Mapping[str, Column]) -> None:
        for name, column in fields.items():
            values = rows_of_nested(column) if isinstance(column, torch.Tensor) else column
            for key, value in zip(keys, values, strict=True):
                self.rows.setdefault(key, {})[name] = value

    def get(self, keys: Sequence[str], names: Sequence[str]) -> dict[str, torch.Tensor]:
        return {name: jagged([self.rows[key][name] for key in keys]) for name in names}

    def remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.rows.pop(key, None)
