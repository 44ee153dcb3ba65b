"""Plugin and recipe of the topology, export and MAPPO tests: five agents say two digits, each having heard another one.

The text that one policy gives goes into the observation of the next, whose tokenizer may be another. Who acts how often
depends on the digits, so that the policies get different numbers of rows, which divide by nothing.
"""

import random
from collections import Counter
from typing import Any

from marl_verl import Task, TaskSet, Workflow, hookimpl

DIGITS = "0123456789"
AGENTS = ("left", "right", "tuned", "foreign", "judge")

TEMPLATE = (  # the same tokens as with the model's own one
    "{# mine #}{% for m in messages %}<|im_start|> {{ m.role }} {{ m.content }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)
STOP = {"foreign": "7", "judge": "3"}
"""Agent -> a text that ends its actions, of its policy or its own."""

RECIPE = """
defaults: [marl_trainer, _self_]
marl:
  run: {journal_tokens: true}
  task: {name: two-digits, train_size: 50, test_size: 5}
  workflow: {name: chain}
  algorithm: {name: mappo}
  critic: {tiny: {hidden: 32, steps: 20}, max_prompt_length: 28, optim: {lr: 4.0e-3}}   # the foreign agent sees more
  agents:
    left: {policy: full, reward: two-words}
    right: {policy: full, reward: two-words}
    tuned: {policy: lora, reward: two-words}
    foreign: {policy: other, reward: two-words}
    judge: {policy: still, sampling: {stop: ["3"]}}
  policies:
    full: {tiny: {steps: 40}, model: {custom_chat_template: "TEMPLATE"}}
    lora:
      pool: both
      tiny: {steps: 60}
      model: {lora_rank: 4, lora_alpha: 8}
      actor: {ppo_mini_batch_size: 4, use_kl_loss: true, kl_loss_coef: 0.01}
    other:
      pool: both
      loss: gspo
      stop: ["7"]
      tiny: {family: llama, steps: 60}
      rollout: {temperature: 1.2, prompt_length: 64, max_model_len: 80}     # the same text, more tokens
      actor: {ppo_mini_batch_size: 2, optim: {lr: 2.0e-3}}
    still: {frozen: true, tiny: {steps: 60, seed: 7}}
  pools: {both: {gpus: 1}}
  sampler: {options: {episodes: 3}}
data: {train_batch_size: 8, max_prompt_length: 24, max_response_length: 8}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 8, optim: {lr: 1.0e-2}}     # one update shows
  rollout: {max_model_len: 40}
trainer: {total_training_steps: 6, test_freq: 6, save_freq: 3, val_before_train: false}
""".replace("TEMPLATE", TEMPLATE)


class TwoDigits(TaskSet):
    """Two digits, to be said by everybody."""

    def generate(self, split: str, count: int, seed: int) -> list[Task]:
        """The parity of their sum tells the splits apart."""
        rng = random.Random(f"{split}{seed}")
        pairs = [(a, b) for a in DIGITS for b in DIGITS if (int(a) + int(b)) % 2 == (split == "test")]
        return [Task(f"two {a} {b}", f"digits {a} {b}", {"digits": [a, b]}) for a, b in rng.sample(pairs, count)]

    def score(self, task: Task, answer: Any) -> float:
        """The share of answers that are right."""
        wanted = " ".join(task.data["digits"])
        return sum(given == wanted for given in answer) / len(answer)

    def vocabulary(self) -> list[str]:
        return ["digits", "heard", *DIGITS]

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        rng = random.Random(f"{agent}{seed}")
        pairs = []
        for _ in range(count):
            a, b, c, d = (rng.choice(DIGITS) for _ in range(4))
            seen = f"digits {a} {b}" if agent in AGENTS[:2] else f"digits {a} {b} heard {c} {d}"
            pairs.append((seen, f"{a} {b}" if rng.random() < good else f"{c} {d}"))
        return pairs


def acts(digits: list[str]) -> Counter[str]:
    """Agent -> how often it acts."""
    first, second = digits
    return Counter(left=1, right=1, tuned=1 + (second in "056"), foreign=1 + (first < "4"), judge=1)


class Chain(Workflow):
    """Left and right at once, then one after the other."""

    async def run(self, task: Task, team: Any) -> list[str]:
        shown, times = task.prompt, acts(task.data["digits"])
        both = await team.act({"left": shown, "right": shown})
        texts = [both["left"].text, both["right"].text]
        for agent in AGENTS[2:]:
            for _ in range(times[agent]):
                texts.append((await team[agent].act(f"{shown} heard {texts[-1]}")).text)
        return texts


def two_words(task: Task, turn: Any, episode: Any) -> float:
    """So that there is something to value, however bad the answers are."""
    return 0.2 + 0.2 * (len(turn.action.text.split()) == 2)


@hookimpl
def marl_register(registry: Any) -> None:
    registry.reward("two-words", two_words)
    registry.task("two-digits", TwoDigits)
    registry.workflow("chain", Chain)
