"""What the docs show runs: a plugin, options on the algorithm that they are shown for, and parts of recipes."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from marl_verl_testing import ScriptedPolicy
from marl_verl_testing.rows import algorithm
from omegaconf import OmegaConf

from marl_verl import plugins
from marl_verl.algo.advantage import RowTable
from marl_verl.config.parts import algorithm_named
from marl_verl.episode import Journal, Run
from marl_verl.episode.codec import decode_journal, encode_journal
from marl_verl.run.describe import describe
from marl_verl.run.prepare import plan_run
from marl_verl.tasks.base import Task
from tests.batches import row

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
SAMPLING = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "sampling.md").read_text(encoding="utf-8"), re.DOTALL)


def block(language: str) -> str:
    (code,) = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    return str(code)


def test_the_options_are_options() -> None:
    shown = yaml.safe_load(block("yaml"))["marl"]["algorithm"]
    method = algorithm_named(shown["name"], shown["options"], "options")
    rows = [
        {**row("q", s, t, t, "a", team=1.0 * s, role=0.5 * t), "obs": "x"} for s in range(3) for t in range(2 + s % 2)
    ]
    assert np.isfinite(method.compute(RowTable.from_rows(rows)).advantage).all()


@pytest.mark.slow
@pytest.mark.parametrize("shown", SAMPLING)
def test_what_sampling_shows_fits_the_quickstart(shown: str, tmp_path: Path) -> None:
    recipe = OmegaConf.load(ROOT / "recipes" / "quickstart" / "inventory.yaml")
    OmegaConf.save(OmegaConf.merge(recipe, OmegaConf.create(shown)), tmp_path / "shown.yaml")
    plan = plan_run(tmp_path / "shown.yaml", ["marl.task.train_size=40", "marl.task.test_size=5"])
    assert "sample  " in describe(plan)


def test_the_plugin_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("docs_plugin")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    exec(compile(block("python"), "docs/algorithms.md", "exec"), module.__dict__)
    monkeypatch.setattr(plugins, "load", lambda: plugins.assemble({"docs": module}))
    rows = [row("q", s, 0, 0, "a", team=float(s)) for s in range(5)]
    result = algorithm("quantile-grpo", **{"norm_by_std": False}).compute(RowTable.from_rows(rows))
    np.testing.assert_allclose(result.advantage, np.arange(5) - 3.0)
    other = algorithm("quantile-grpo", **{"q": 0.5, "norm_by_std": False})
    np.testing.assert_allclose(other.compute(RowTable.from_rows(rows)).advantage, np.arange(5) - 2.0)


def test_the_return_and_the_credit_do_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("docs_parts")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block("py"), "docs/algorithms.md", "exec"), module.__dict__)
    known = plugins.assemble({"docs": module})

    def compute(rows: list[dict[str, Any]], name: str, **options: Any) -> Any:
        return algorithm(known.get("algorithms", name), **options).compute(RowTable.from_rows(rows))

    rows = [row("q", s, t, t, "a", team=float(s), potential=1.0 + t) for s in range(2) for t in range(2)]
    shaped = compute(rows, "potential-based", gamma=0.5)
    assert shaped.reward.tolist() == [0.0, 0.0, 1.0, 1.0]  # the potential is no reward
    assert shaped.ret.tolist() == [0.0, -2.0, 1.0, -1.0]
    rows = [row("q", s, 0, 0, "a", team=1.0, default=0.25 * s, role=10.0) for s in range(3)]
    assert compute(rows, "difference").reward.tolist() == [11.0, 10.75, 10.5]


def test_the_workflow_that_repeats_a_request_does_and_replays_without_it() -> None:
    """A server that is busy twice, one that refuses, and a port on which nothing listens."""
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    (code,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "HTTPError" in each]
    module = types.ModuleType("shown_calls")
    sys.modules["shown_calls"] = module  # calls are found by module and name
    exec(code, module.__dict__)
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path == "/no":
                self.send_error(404, "no such page")
            elif len(asked) < 3:
                self.send_error(503, "busy")
            else:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"found": 1}')

        def log_message(self, *_: Any) -> None:
            pass

    policy = ScriptedPolicy({"writer": lambda act, session, candidate: act.observation[-1]["content"]})

    def answer(url: str, journal: Journal | None = None) -> Run:
        return asyncio.run(driven(url, journal))

    async def driven(url: str, journal: Journal | None) -> Run:
        workflow = module.Researcher(url=url)
        async with Run(workflow, Task("t", "q"), ["writer"], journal, sealed=journal is not None) as run:
            while (acts := await run.next()) is not None:
                for act in acts:
                    run.resolve(act, policy.act(act))
        return run

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        runs = {base: answer(base), f"{base}/no": answer(f"{base}/no")}
        server.shutdown()
    runs[base + "/closed"] = answer(base + "/closed")
    shown = [run.answer.partition("\n")[2] for run in runs.values()]
    assert shown[:2] == ['{"found": 1}', '{"error": "404 no such page"}']
    assert "Connection refused" in shown[2]
    assert [path == "/no" for path in asked] == [False, False, False, True]
    for url, run in runs.items():
        taken = []
        for _ in range(5):  # on a busy machine, one of them is quick
            begun = time.monotonic()
            assert answer(url, decode_journal(encode_journal(run.journal))).answer == run.answer
            taken.append(time.monotonic() - begun)
        assert min(taken) < 0.1  # no request, no waiting
