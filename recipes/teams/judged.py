"""A judge of inventory's answers, as a script: it is right nine times out of ten."""

from marl_verl_tiny.inventory import ORDINALS

from marl_verl import hookimpl


def judge(messages, random):
    task, _, answer = messages[-1]["content"].rpartition(" says ")
    _, *digits, _, index = task.split()
    right = answer.strip() == digits[ORDINALS.index(index)]
    return "yes" if right == (random.random() < 0.9) else "no"


@hookimpl
def marl_register(registry):
    registry.script("inventory-judge", judge)
