"""LangGraph: a graph with a loop. The first agent answers until the second says yes, at most `rounds` times."""

from httpx import AsyncClient
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from marl_verl_agents import transport

from marl_verl import Workflow, hookimpl


def graph(model, rounds):
    async def answer(state):
        return {"messages": [await model("first").ainvoke(state["messages"])]}

    async def judge(state):
        return {"messages": [await model("second").ainvoke(state["messages"])]}

    def ends(state):
        agreed = "yes" in state["messages"][-1].content
        return END if agreed or len(state["messages"]) >= 2 * rounds + 1 else "answer"

    made = StateGraph(MessagesState).add_node("answer", answer).add_node("judge", judge)
    return made.add_edge(START, "answer").add_edge("answer", "judge").add_conditional_edges("judge", ends).compile()


class AnswerAndJudge(Workflow):
    rounds: int = 2

    async def run(self, task, team):
        def model(agent):
            http = AsyncClient(transport=transport(team, agent))
            return ChatOpenAI(model=agent, api_key="none", max_retries=0, http_async_client=http)

        state = await graph(model, self.rounds).ainvoke({"messages": [("user", task.prompt)]})
        return state["messages"][-2].content


@hookimpl
def marl_register(registry):
    registry.workflow("answer-and-judge", AnswerAndJudge)
