"""A user's script: train README's pair by the Python API until the trainer is killed, then without the recipe's files:
continue the run in this process, evaluate here and explain.

python notebook.py OVERRIDES, as JSON, in a folder with my_team.py and my_team.yaml. Prints what it found, as JSON.
"""

import asyncio
import json
import os
import pathlib
import sys

from marl_verl import RunError, evaluate, explain, load_run, train


async def notebook():
    steps, died = [], ""

    def progress(event):
        return event["event"] == "step" and steps.append(event["step"])

    try:
        train("my_team.yaml", json.loads(sys.argv[1]), progress=progress)
    except RunError as error:
        died = str(error)
    for name in ("my_team.py", "my_team.yaml"):
        pathlib.Path(name).unlink()
    del os.environ["MARL_VERL_KILL"]
    run = train(resume="runs/mine", backend="local", progress=progress)
    again = load_run(run)
    swap = [("answerer", "sender")]
    found = await asyncio.to_thread(
        evaluate, run, step=3, tasks=10, swap=swap, greedy_only=True, progress=False, backend="local"
    )
    rows = explain(run, step=2)
    return {
        **{"died": died, "steps": steps},
        "metrics": [line["step"] for line in again.metrics if "train/success" in line],
        **{"summary": again.summary["steps"], "checkpoints": sorted(again.checkpoints)},
        "episodes": {step: len(episodes) for step, episodes in again.episodes.items()},
        **{"validated": sorted(again.validations), "success": found.success},
        "played": [len(list(found.episodes())), found.numbers["eval_tasks"]],
        "policies": {name: agent["policy"] for name, agent in found.numbers["agents"].items()},
        **{"rows": len(rows), "difference": rows.difference},
    }


print(json.dumps(asyncio.run(notebook())))
