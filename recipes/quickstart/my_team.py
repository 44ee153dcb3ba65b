"""Two agents see three digits each, and the team must answer the largest of the six."""

import random

from marl_verl import Advantage, Algorithm, Mix, Task, TaskSet, Workflow, hookimpl
from marl_verl.algo.advantage import LeaveOneOut

DIGITS = "0123456789"


def sees(task, agent, message=""):
    return f"digits {' '.join(task.data[agent])} message {message}".strip()


class SendAndAnswer(Workflow):
    """The sender sends one digit; the answerer sees it and its own digits, and answers."""

    async def run(self, task, team):
        sent = await team["sender"].act(sees(task, "sender"))
        answer = await team["answerer"].act(sees(task, "answerer", sent.text))
        return answer.text


class LargestDigit(TaskSet):
    held: int = 3  # digits of each agent: an option, marl.task.options.held

    def draw(self, rng, split):  # one task in ten is held out: its digits add up to a multiple of ten
        while True:
            digits = rng.choices(DIGITS, k=2 * self.held)
            if (sum(map(int, digits)) % 10 == 0) == (split == "test"):
                words = " ".join(digits)
                return Task(words, words, {"sender": digits[: self.held], "answerer": digits[self.held :]})

    def generate(self, split, count, seed):
        rng, tasks = random.Random(f"{split} {seed}"), {}
        while len(tasks) < count:
            task = self.draw(rng, split)
            tasks[task.id] = task
        return list(tasks.values())

    def score(self, task, answer):  # the team reward
        return float(answer.strip() == max(task.data["sender"] + task.data["answerer"]))

    def vocabulary(self):  # only for tiny models: all words
        return [*DIGITS, "digits", "message"]

    def demonstrations(self, agent, count, seed, good):  # only for tiny models: a share `good` is right
        rng, pairs = random.Random(f"{agent} {seed}"), []
        for _ in range(count):
            task = self.draw(rng, "train")
            message = max(task.data["sender"]) if agent == "answerer" else ""
            right = max([*task.data[agent], message])
            pairs.append((sees(task, agent, message), right if rng.random() < good else task.data[agent][0]))
        return pairs


def holds_it(task, turn, episode):  # a role reward: whether the agent holds the digit that it names
    return float(turn.action.text.strip() in task.data[turn.agent])


# A = r - mean r of the agent's other turns on the same task, where r = team + 0.2 role
MY_RLOO = Algorithm(
    rewards=Mix(team=1.0, role=0.2),
    advantage=Advantage(group=("uid", "agent"), baseline=LeaveOneOut(), norm_by_std=False),
)


@hookimpl
def marl_register(registry):
    registry.task("largest-digit", LargestDigit)
    registry.workflow("send-and-answer", SendAndAnswer)
    registry.reward("holds-it", holds_it)
    registry.algorithm("my-rloo", MY_RLOO)
