"""A judge of inventory's answers and a coach of its acts, as scripts: they are right nine times out of ten."""

from marl_verl_tiny.inventory import ORDINALS

from marl_verl import hookimpl


def judge(messages, random):
    task, _, answer = messages[-1]["content"].rpartition(" says ")
    _, *digits, _, index = task.split()
    right = answer.strip() == digits[ORDINALS.index(index)]
    return "yes" if right == (random.random() < 0.9) else "no"


def coach(messages, random):
    seen, _, said = messages[-1]["content"].rpartition(" says ")
    agent, _, *digits = seen.split()
    if agent == "asker":
        *message, _, index = digits
        digits = [digit for place, digit in zip(ORDINALS, message, strict=False) if place == index]
    return "yes" if (said.split() == digits) == (random.random() < 0.9) else "no"


@hookimpl
def marl_register(registry):
    registry.script("inventory-judge", judge)
    registry.script("inventory-coach", coach)
