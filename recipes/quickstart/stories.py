"""A reader sees a story and writes the sum; a calculator sees only the sum and answers. Both are chat models."""

import random
import re

from marl_verl import Task, TaskSet, Workflow, hookimpl

STORIES = (  # a + b, or a - b
    ("+", "{name} has {a} {things} and buys {b} more."),
    ("+", "There are {a} {things} in a box. {name} adds {b}."),
    ("+", "{name} finds {a} {things} and then {b} more."),
    ("-", "{name} has {a} {things} and loses {b}."),
    ("-", "There are {a} {things} on a table. {name} takes {b}."),
    ("-", "{name} had {a} {things} and gave away {b}."),
)
NAMES = ("Ann", "Ben", "Eva", "Max", "Mia", "Tom")
THINGS = ("apples", "books", "coins", "cups", "pens", "stones")
LARGEST = 20


def chat(instruction, examples, question):
    turns = [(role, text) for pair in examples for role, text in zip(("user", "assistant"), pair, strict=True)]
    turns = [("system", instruction), *turns, ("user", question)]
    return [{"role": role, "content": text} for role, text in turns]


READER = (
    ("Sam has 12 eggs and buys 5 more.", "12 + 5"),
    ("Zoe had 9 hats and gave away 3.", "9 - 3"),
    ("There are 8 keys in a box. Leo adds 6.", "8 + 6"),
)
CALCULATOR = ("3 + 5", "3 + 5 = 8"), ("19 - 4", "19 - 4 = 15")


class ReadAndCalculate(Workflow):
    """The calculator sees what the reader writes, up to an equals sign; the team's answer is what follows its own."""

    async def run(self, task, team):
        read = await team["reader"].act(chat("Write the sum.", READER, task.prompt))
        question = read.text.partition("=")[0].strip()
        answer = await team["calculator"].act(chat("Calculate.", CALCULATOR, question))
        return answer.text.rpartition("=")[2].strip()


class OneReader(Workflow):
    """One agent writes the sum and its result."""

    async def run(self, task, team):
        solved = [(story, f"{total} = {value(total)}") for story, total in READER[:2]]
        agent = team[team.agents[0]]
        text = (await agent.act(chat("Write the sum.", solved, task.prompt))).text
        return text.partition("\n")[0].rpartition("=")[2].strip()


class Stories(TaskSet):
    """Addition and subtraction up to 20, in six stories. One pair of numbers in five is in test tasks only."""

    def generate(self, split, count, seed):
        rng, tasks = random.Random(f"{split} {seed}"), {}
        while len(tasks) < count:
            a, b = rng.randint(2, LARGEST), rng.randint(1, 9)
            sign, story = rng.choice(STORIES)
            result = a + b if sign == "+" else a - b
            if 0 <= result <= LARGEST and ((a + 2 * b) % 5 == 0) == (split == "test"):
                text = story.format(name=rng.choice(NAMES), things=rng.choice(THINGS), a=a, b=b)
                tasks[text] = Task(text, text, {"answer": str(result)})
        return list(tasks.values())

    def score(self, task, answer):
        return float(answer == task.data["answer"])


def value(text):
    """Of "12 + 5": 17. None for a text of another form."""
    found = re.fullmatch(r"(\d+) ([+-]) (\d+)", text.strip())
    return None if found is None else int(found[1]) + int(found[2] + found[3])


def right_sum(task, turn, episode):  # role reward of the reader
    return float(value(turn.action.text.partition("=")[0]) == int(task.data["answer"]))


def right_result(task, turn, episode):  # role reward of the calculator: its equation is true
    left, _, right = turn.action.text.partition("=")
    return float(right.strip() == str(value(left)))


@hookimpl
def marl_register(registry):
    registry.task("stories", Stories)
    registry.reward("right-sum", right_sum)
    registry.reward("right-result", right_result)
    registry.workflow("read-and-calculate", ReadAndCalculate)
    registry.workflow("one-reader", OneReader)
