"""Edit an act of a stored episode and continue: what would have happened if an agent had acted otherwise?

    recorded   the effects before the act, its recorded action, then the policies of an evaluation
    edited     the same with a text as its action

Both have the same sessions and seeds. Other acts of the same joint move did not see the act and stay; later acts and
calls are new.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from marl_verl.episode import Action, ActRecord, Journal
from marl_verl.episode.codec import encode_journal
from marl_verl.errors import MarlError, unknown
from marl_verl.inspect.replay import differences, replay
from marl_verl.inspect.run_files import file_of_episode, read_episodes
from marl_verl.tasks import Task


def edited_rows(
    run: Path, name: str, act: str, text: str, sampled: bool
) -> tuple[Task, int, tuple[dict[str, Any], ...]]:
    """(task, step, a `TaskRow` of each arm) of an episode. MarlError: no act "AGENT:SLOT", or its replay differs."""
    file = read_episodes(file_of_episode(run, name))
    episode = file.episode(name)
    acts = {":".join(record.act.key): record for record in episode.journal.acts()}
    changed = differences(episode, replay(file.header, episode))
    if changed:
        raise MarlError(f"episode '{name}' is not what is stored: {changed[0]}")
    if act not in acts:
        raise unknown(f"act of episode '{name}'", act, acts)
    records, edited = episode.journal.records, acts[act]
    at, joint = records.index(edited), edited.act.joint
    later = [record for record in records[at + 1 :] if isinstance(record, ActRecord)]
    kept = [record for record in later if joint is not None and record.act.joint == joint]
    task, rows = json.dumps(dataclasses.asdict(episode.task)), []
    for arm, action in (("recorded", edited.action), ("edited", Action(text))):
        begun = Journal((*records[:at], ActRecord(edited.act, action), *kept), episode.journal.seed)
        rows.append({"task": task, "uid": arm, "keep": True, "sampled": sampled, "journal": encode_journal(begun)})
    return episode.task, file.header.step, tuple(rows)
