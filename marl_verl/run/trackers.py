"""The trackers in `trainer.logger`: checked before the run starts, and writing into the run directory.

Uses verl internals: the names, environment variables and adapters of `verl.utils.tracking.Tracking`.
"""

import importlib.util
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from omegaconf import ListConfig

from marl_verl.errors import MarlError, check, unknown
from marl_verl.files import read_text

TRACKERS = (
    *("console", "file", "tensorboard", "wandb", "mlflow", "swanlab", "trackio", "clearml", "rl_insight"),
    "vemlp_wandb",
)


def names_of(config: Any) -> list[str]:
    """The trackers of a run."""
    logger = config.trainer.logger
    return list(map(str, logger)) if isinstance(logger, ListConfig) else [str(logger)]


@check
def check_trackers(config: Any) -> Iterator[str]:
    """MarlError for an unknown tracker, or one whose package is missing."""
    for name in names_of(config):
        if name not in TRACKERS:
            yield str(unknown("tracker", name, TRACKERS))
        package = "volcengine_ml_platform" if name == "vemlp_wandb" else name
        if name not in ("console", "file") and not importlib.util.find_spec(package):
            yield f"tracker '{name}' in trainer.logger needs package {package}: pip install {package}"


def _offline() -> bool:
    """Whether W&B would ask for a key, in a terminal that shows no question of it."""
    named = {"WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"} & os.environ.keys()
    server = urlsplit(os.environ.get("WANDB_BASE_URL", "")).netloc or "wandb"
    login = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    return not named and not (login.is_file() and server in login.read_text(errors="replace"))


@contextmanager
def tracked(trainer: Any) -> Iterator[None]:
    """Let the trackers that verl opens in the block write into the run directory, and close them at its end.

    W&B marks the run as failed if the block raises.
    """
    for name, value in variables(trainer.run_dir.folder.resolve(), names_of(trainer.config)).items():
        os.environ.setdefault(name, value)
    code = 1
    try:
        yield
        code = 0
    finally:
        if (tracking := trainer.tracking) is not None:
            tracking.finish(exit_code=code)


def variables(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """The environment variables of trackers; those that the user has set take precedence.

    A resumed run continues its W&B run and its TensorBoard files. Other trackers begin a new run of the same name.
    """
    # not MLflow's store of plain files, where `reward` and `reward/team` cannot both be metrics
    values = {
        "TENSORBOARD_DIR": f"{folder / 'tensorboard'}",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # by default, an unreachable server fails after many minutes
    }
    if "wandb" in names:
        (folder / "wandb").mkdir(exist_ok=True)
        run_id = folder / "wandb" / "run_id"
        if not run_id.is_file():
            run_id.write_text(uuid.uuid4().hex, encoding="utf-8")
        values |= {"WANDB_DIR": str(folder)}  # W&B adds /wandb
        values |= {"WANDB_RUN_ID": read_text(run_id), "WANDB_RESUME": "allow", "WANDB_FINISH_TIMEOUT": "300"}
        if _offline():
            values["WANDB_MODE"] = "offline"
    if "file" in names:
        number = len(list(folder.glob("tracked*.jsonl")))
        values["VERL_FILE_LOGGER_PATH"] = str(folder / (f"tracked-{number + 1}.jsonl" if number else "tracked.jsonl"))
    return values


def restart(tracking: Any, names: Sequence[str], step: int) -> None:
    """Let TensorBoard ignore what an interrupted run wrote for this and later steps, which are repeated. MarlError: a
    tracker did not start, without which verl continues."""
    for name in names:
        if name not in tracking.logger:
            raise MarlError(f"tracker '{name}' did not start; train.log has the reason. Remove it from trainer.logger.")
    if "tensorboard" in tracking.logger and step > 1:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        event = Event(session_log=SessionLog(status=SessionLog.START))
        tracking.logger["tensorboard"].writer.file_writer.add_event(event, step)


def flush(tracking: Any) -> None:
    """Write TensorBoard's buffered metrics to its file, for a process that ends without closing it."""
    if "tensorboard" in tracking.logger:
        tracking.logger["tensorboard"].writer.flush()
