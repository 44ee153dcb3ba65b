"""Kuhn Poker as a task set and a workflow of two agents, each of which sees its own card only."""

import random
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from marl_verl import Task, TaskSet, Team, Workflow
from marl_verl.errors import check_known
from marl_verl.tasks import Split
from marl_verl_self_play.kuhn import CARDS, DEALS, ENDS, INFORMATION_SETS, equilibrium, legal_moves, payoff

PLAYERS = ("first", "second")
BETS = dict(zip(CARDS, (0.1, 0.2, 0.5), strict=True))  # in demonstrations, P(bet or call) with a card
EQUILIBRIUM = equilibrium(1 / 6)  # information set -> P(bet or call)
RULES = (
    "Kuhn Poker: the cards are J < Q < K, each player has one, and both have put in 1 chip. A bet or a call is 1 more "
    "chip. The higher card wins, unless a player folds."
)


class KuhnPoker(TaskSet):
    """Deals of Kuhn Poker: every six tasks are the six deals, in random order.

    The game has no other deals, so held-out tasks measure how the players play, not whether they generalise. Each
    side, `first` and `second`, scores its payoff in chips; the two add up to 0.
    """

    quick = True
    sides = PLAYERS

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` numbered deals. Ids have the split, so that no test task is a training task."""
        rng = random.Random(f"kuhn-poker {split} {seed}")
        deals: list[tuple[str, str]] = []
        while len(deals) < count:
            deals += rng.sample(DEALS, len(DEALS))
        names = (f"kuhn-poker {split} {seed}-{number}" for number in range(count))
        pairs = zip(names, deals, strict=False)
        return [Task(name, RULES, {"cards": list(deal), "deal": name}) for name, deal in pairs]

    def vocabulary(self) -> list[str]:
        return [*CARDS, *legal_moves(""), *legal_moves("b")]

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """(observation, move) pairs of an agent at random information sets, for tiny models. A share `good` of them
        is legal, of a timid beginner (`BETS`). Its exploitability is 0.405; at random, it would be 0.458."""
        check_known("agent", agent, PLAYERS)
        rng = random.Random(f"kuhn-poker demonstrations {agent} {seed}")
        names = INFORMATION_SETS[PLAYERS.index(agent)]
        pairs = []
        for _ in range(count):
            name = rng.choice(names)
            legal, other = (legal_moves(history) for history in (name[1:], "" if name.endswith("b") else "b"))
            move = legal[rng.random() < BETS[name[0]]]
            pairs.append((observation(name[0], name[1:]), move if rng.random() < good else rng.choice(other)))
        return pairs

    def score(self, task: Task, answer: Any) -> dict[str, float]:
        return dict(answer["rewards"])

    def success(self, task: Task, answer: Any) -> bool:
        return bool(answer["illegal"] == 0)


class KuhnPokerGame(Workflow):
    """Agents `first` and `second`, of the sides of these names, play one deal. The answer has their payoffs.

    A move is the only legal one that the text names as a word, in any case. Any other text is marked as invalid and
    counts as a check or fold, so that every game ends and stays zero-sum.

    Options:
        drawn_seats: whether agent `first` has the second seat in about half of the tasks, by their ids. With an
            opponent as `second`, the policy of `first` then learns both seats.
    """

    drawn_seats: bool = False

    async def run(self, task: Task, team: Team) -> dict[str, Any]:
        cards = task.data["cards"]
        seats = PLAYERS[::-1] if self.drawn_seats and zlib.crc32(task.id.encode()) % 2 else PLAYERS
        history, illegal = "", 0
        while history not in ENDS:
            player = len(history) % 2
            action = await team[seats[player]].act(observation(cards[player], history))
            bets = named_move(action.text, history)
            if bets is None:
                team.invalid(action, f"no single legal move: {' or '.join(legal_moves(history))}")
                illegal += 1
            history += "b" if bets else "p"
        won = float(payoff(cards, history))
        rewards = dict(zip(seats, (won, -won), strict=True))
        told = ", ".join(f"{seats[at % 2]} {move}" for at, move in enumerate(_moves(history)))
        return {"text": f"{' '.join(cards)}: {told}", "rewards": rewards, "illegal": illegal}


def observation(card: str, history: str) -> str:
    """What the player to move sees after a history: its card and the moves so far, such as "K check bet"."""
    return " ".join((card, *_moves(history)))


def named_move(text: str, history: str) -> bool | None:
    """Whether a text bets or calls after a history; None if it does not name exactly one legal move."""
    first, second = legal_moves(history)
    named = set(re.findall(r"[a-z]+", text.lower())) & {first, second}
    return second in named if len(named) == 1 else None


def _moves(history: str) -> list[str]:
    return [legal_moves(history[:at])[move == "b"] for at, move in enumerate(history)]


INFORMATION_SET = {observation(name[0], name[1:]): name for names in INFORMATION_SETS for name in names}
"""Observation -> information set."""


def kuhn_equilibrium(messages: Sequence[Mapping[str, Any]], random: random.Random) -> str:
    """Script: the move of a player of the equilibrium with alpha = 1/6, drawn with its probabilities."""
    name = INFORMATION_SET[messages[-1]["content"]]
    return legal_moves(name[1:])[random.random() < EQUILIBRIUM[name]]


def move_probabilities(chances: Iterable[tuple[str, float]], history: str) -> tuple[float, float]:
    """(probability of a bet or call, probability of a text that names no single legal move) after a history, from pairs
    of a text and its probability."""
    bets = illegal = 0.0
    for text, chance in chances:
        named = named_move(text, history)
        bets, illegal = bets + chance * (named is True), illegal + chance * (named is None)
    return bets, illegal


def strategy_of(folder: str) -> tuple[dict[str, float], float]:
    """(probability of a bet or call by information set, mean probability of an illegal move) of a model that plays both
    sides: a Hugging Face folder, such as `marl-verl export` writes. A move's probability is that of all tokens that
    name it; illegal ones count as check or fold."""
    import torch  # imports take seconds
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    strategy, illegal = {}, 0.0
    for seen, name in INFORMATION_SET.items():
        messages = [{"role": "user", "content": seen}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])).logits[0, -1]
        chances = torch.softmax(logits.double(), dim=-1).tolist()
        texts = (tokenizer.decode([token], skip_special_tokens=True) for token in range(len(chances)))
        strategy[name], wrong = move_probabilities(zip(texts, chances, strict=True), name[1:])
        illegal += wrong / 12
    return strategy, illegal
