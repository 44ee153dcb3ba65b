"""A team of two on a bundled task: the holder sees some digits, the asker is asked for one of them."""

from marl_verl import Workflow, hookimpl


class SendAndAsk(Workflow):
    async def run(self, task, team):
        digits, index = task.prompt.split(" index ")  # such as "digits 3 1 4 1" and "second"
        sent = await team["holder"].act(digits)
        answer = await team["asker"].act(f"message {sent.text} index {index}")
        return answer.text  # the task set scores it: 1 for the digit that was asked for, else 0


def sends_all(task, turn, episode):  # a role reward: whether the holder sent all its digits
    return float(turn.action.text.split() == task.data["digits"])


@hookimpl
def marl_register(registry):
    registry.workflow("send-and-ask", SendAndAsk)
    registry.reward("sends-all", sends_all)
