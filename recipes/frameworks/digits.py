"""Two agents and one question: which is the largest of six digits? The task of all recipes in this folder."""

import random

from marl_verl import Task, TaskSet, hookimpl

DIGITS = "0123456789"


class Digits(TaskSet):
    tool: str = ""  # the tool that the first agent calls, with its digits if the name does not begin with transfer

    def draw(self, rng, split):  # one task in ten is held out: its digits add up to a multiple of ten
        while True:
            digits = rng.choices(DIGITS, k=6)
            if (sum(map(int, digits)) % 10 == 0) == (split == "test"):
                text = f"{' '.join(digits[:3])} and {' '.join(digits[3:])}"
                return Task(text, text, {"first": digits[:3], "answer": max(digits)})

    def generate(self, split, count, seed):
        rng, tasks = random.Random(f"{split} {seed}"), {}
        while len(tasks) < count:
            task = self.draw(rng, split)
            tasks[task.id] = task
        return list(tasks.values())

    def score(self, task, answer):
        return float(answer.strip() == task.data["answer"])

    # for tiny models: all words, and what an agent says at first, right in a share `good`

    def vocabulary(self):
        call = ["<tool_call>", '{"name":', f'"{self.tool}",', '"arguments":', "{}}", '{"digits":', "</tool_call>"]
        quoted = [*(f'"{digit}' for digit in DIGITS), *(f'{digit}"}}}}' for digit in DIGITS)]
        return [*DIGITS, *call, *quoted, "and", "tool", "yes", "no"]

    def demonstrations(self, agent, count, seed, good):
        rng, pairs = random.Random(f"{agent} {seed}"), []
        for _ in range(count):
            task = self.draw(rng, "train")
            right = rng.random() < good
            said = task.data["answer"] if right else task.data["first"][0]
            if agent == "first" and self.tool:
                digits = " ".join(task.data["first"])
                given = "{}" if self.tool.startswith("transfer") else f'{{"digits": "{digits}"}}'
                if right:
                    said = f'<tool_call> {{"name": "{self.tool}", "arguments": {given}}} </tool_call>'
            pairs.append((task.prompt, said))
        return pairs


@hookimpl
def marl_register(registry):
    registry.task("digits", Digits)
