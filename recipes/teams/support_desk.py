"""A simulated customer, a support agent and a tool agent find out what happened to an order, and what resolves it."""

from marl_verl_search.answers import tagged

from marl_verl import Task, Workflow, hookimpl
from marl_verl.episode import CallError
from marl_verl.options import Positive
from marl_verl.tasks import DrawnTasks

RESOLVED_BY = {"lost": "refund", "broken": "replace", "late": "wait", "unpaid": "invoice"}


def status(orders, number):  # the tool
    return orders[number]


def customer(messages, random):  # half of the time it does not say which order, until it is asked
    order, *asked = messages[-1]["content"].split()
    return f"help {order}" if asked or random.random() < 0.5 else "help"


class SupportDesk(Workflow):
    """The support agent asks the customer ("ask"), sends a request to the tool agent ("status 3"), or resolves."""

    turns: Positive = 4  # of the support agent

    async def run(self, task, team):
        seen = (await team["customer"].act(task.prompt)).text
        for _ in range(self.turns):
            word, _, request = (await team["support"].act(seen)).text.strip().partition(" ")
            if word == "ask":
                seen = (await team["customer"].act(f"{task.prompt} asked")).text
            elif word == "status":
                call = await team["tool"].act(f"status {request}")
                try:
                    seen += " " + await team["tool"].call(status, task.data["orders"], tagged(call.text, "call"))
                except CallError:
                    seen += " unknown"
            else:
                return word
        return "unresolved"


class SupportRequests(DrawnTasks):
    """The score is 1 if the customer's order is resolved. Careless support agents refund all that is asked."""

    quick = True
    name = "support-desk"
    agents = ("customer", "support", "tool")

    def score(self, task, answer):
        return float(answer == RESOLVED_BY[task.data["orders"][task.data["order"]]])

    def vocabulary(self):
        pairs = [pair for agent in self.agents for pair in self.demonstrations(agent, 2000, 0, 0.5)]
        return sorted({word for pair in pairs for text in pair for word in text.split()} | {"unknown"})

    def _demonstration(self, agent, task, rng, good):
        order, state = task.data["order"], task.data["orders"][task.data["order"]]
        asked = {"help": "ask", f"help {order}": f"status {order}", f"help {order} {state}": RESOLVED_BY[state]}
        seen, right, careless = {
            "customer": (f"{order} asked", f"help {order}", "help"),
            "support": (*rng.choice(list(asked.items())), "refund"),
            "tool": (f"status {order}", f"<call>{order}</call>", "<call>0</call>"),
        }[agent]
        return seen, right if rng.random() < good else careless

    def _random_task(self, rng):
        orders = {number: rng.choice(list(RESOLVED_BY)) for number in rng.sample("0123456789", 4)}
        order = next(iter(orders))
        return str(orders), Task(f"support-desk {orders}", order, {"order": order, "orders": orders})


@hookimpl
def marl_register(registry):
    registry.task("support-desk", SupportRequests)
    registry.workflow("support-desk", SupportDesk)
    registry.script("customer", customer)
