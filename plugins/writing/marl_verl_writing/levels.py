"""Writing reward in levels, up to 2.98 (as transitions are at most 0.95), of two parts of one text; without a model.

    structure     0.5  if the word counts of both parts are in range, else the reward is 0
    length        1.0  characters(two) / characters(one): full in a band, linear to 0 at the limits beside it
    vocabulary    0.5  different words(two) / different words(one), stop words included: the same
    style         1.0  0.4 * transitions + 0.6 * min(J, J_full) / J_full

    transitions = 0.4 + 0.05 (c - 1),  c: how many of the 12 kinds of transition words occur; 0 if none
    J = |A and B| / |A or B|,  A and B the different words of the parts without stop words; 1 if both are empty

A ratio beyond a limit ends the reward: no further level counts. README.md has the exact rules.

Source: MAGRPO, arXiv 2508.04652, and the authors' code (OpenMLRL/LLM_Collab_Writing). The lists of words are ours.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

TRANSITIONS: Mapping[str, tuple[str, ...]] = {
    kind: tuple(" ".join(entry.split()) for entry in entries.split("|"))
    for kind, entries in {
        "elaboration": """also | furthermore | moreover | additionally | in addition | besides | as well as | further |
            what is more | on top of that | beyond that | not to mention | to say nothing of | along with | likewise |
            similarly | equally | in the same way | by the same token | correspondingly | in like manner""",
        "examples": """for example | for instance | such as | namely | in particular | specifically | including |
            to illustrate | illustrated by | as an illustration | as an example | one example | another example |
            a case in point | by way of example | to name a few | in this case | as shown by | especially |
            particularly | notably | among others""",
        "explanation": """that is | in other words | that is to say | to put it differently | put differently |
            to clarify | to explain | to put it simply | simply put | meaning that | this means | which means |
            in simpler terms | to rephrase | to be precise | more precisely | to be exact | or rather | in fact |
            indeed | that is why | in essence""",
        "cause and effect": """so | then | thus | hence | ergo | therefore | because | consequently | accordingly |
            as a result | as a consequence | because of | due to | owing to | on account of | for this reason |
            for that reason | that is why | this is why | so that | with the result that | leads to | results in |
            in turn | thereby | given that""",
        "contrast": """but | yet | still | while | however | nevertheless | nonetheless | although | though |
            even though | despite | in spite of | notwithstanding | whereas | in contrast | by contrast |
            on the contrary | contrary to | conversely | instead | unlike | on the other hand | rather |
            as opposed to | rather than | alternatively | in comparison | otherwise | then again""",
        "sequence": """first | then | third | next | later | second | firstly | secondly | thirdly | to begin with |
            to start with | in the first place | first of all | initially | following this | after that |
            the next step | at the outset | step by step | in the meantime | meanwhile | afterwards | subsequently |
            at the same time | simultaneously | previously | eventually | finally | lastly | ultimately |
            in the end | last of all | to conclude""",
        "emphasis": """indeed | in fact | above all | notably | especially | importantly | significantly |
            undoubtedly | certainly | of course | clearly | obviously | without doubt | no doubt | to emphasize |
            to underline | most of all | particularly | needless to say | in truth | as a matter of fact | surely |
            definitely | crucially""",
        "summary": """in conclusion | in summary | to sum up | in short | in brief | overall | all in all |
            to summarize | in sum | on the whole | altogether | briefly | in a nutshell | simply put | in essence |
            finally | lastly | ultimately | in the end | last of all | to conclude""",
        "comparison": """in comparison | compared to | compared with | just as | akin to | resembling |
            comparable to | analogously | much like | unlike | likewise | similarly | equally | in the same way |
            by the same token | correspondingly | in like manner""",
        "concession": """still | yet | while | however | nevertheless | nonetheless | although | though |
            even though | despite | in spite of | notwithstanding | even if | granted | admittedly | regardless |
            be that as it may | even so | for all that""",
        "condition": """if | had | were | should | unless | otherwise | provided that | providing that | as long as |
            in case | on condition that | assuming that | given that | whether | only if | supposing |
            in the event that | depending on | even if""",
        "time": """as | when | after | since | until | while | later | before | during | whenever | as soon as |
            by the time | meanwhile | afterwards | subsequently | at the same time | simultaneously | previously |
            eventually | recently | formerly | nowadays | in the past | immediately | as long as | thereafter""",
    }.items()
}
"""Kind -> its entries, in lower case; an entry may be in several kinds, and counts in each."""

_STOP_WORDS = """
    a an the i me my we us our you your he him his her it its they them their this that these those who which what
    am is are was were be been being has have had do does did can could will would shall should may might must
    at by for from in of on out to up with as than and but or if so then too also not no only own such just
    how when why here there now all any both each few many more most much other some
    bad good great new old long low little left right first last
    """
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words without a topic, which the overlap of two texts leaves out."""


WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Band:
    """1 from `low` to `high`, and linear to 0 at `none_below` and `none_above`."""

    none_below: float
    low: float
    high: float = math.inf
    none_above: float = math.inf

    def of(self, value: float) -> float | None:
        """Score of a value, 0 to 1; None beyond a limit."""
        if not self.none_below <= value <= self.none_above:
            return None
        if value < self.low:
            return (value - self.none_below) / (self.low - self.none_below)
        return 1.0 if value <= self.high else 1 - (value - self.high) / (self.none_above - self.high)


@dataclass(frozen=True)
class Bands:
    """Reward parameters of a data set."""

    words: tuple[int, int]  # minimum and maximum number of words of each part
    length: Band  # of the ratio of characters, two / one
    vocabulary: Band  # of the ratio of different words
    transitions_in: Literal["two", "both"]  # where transition words count; both are joined without a blank
    overlap: float  # J with the full score


TLDR = Bands((8, 256), Band(1.1, 1.6, 3.2, 5.0), Band(1.3, 2.0), "two", 0.03)
"""A one-sentence summary, and a detailed one."""

ARXIV = Bands((128, 256), Band(0.8, 1.3, 1.6, 2.0), Band(0.5, 0.7, 1.3, 1.7), "both", 0.23)
"""Two paragraphs of one introduction."""

BANDS: Mapping[str, Bands] = {"tldr": TLDR, "arxiv": ARXIV}


def levels(one: str, two: str, bands: Bands) -> dict[str, float]:
    """Level -> its reward, in order, up to the last level that is judged; their sum is the reward."""
    if not structure(one, two, bands):
        return {"structure": 0.0}
    rewards = {"structure": 0.5}
    for level, reward, band, count in (
        ("length", 1.0, bands.length, len),
        ("vocabulary", 0.5, bands.vocabulary, lambda part: len(different(part))),
    ):
        score = band.of(count(two) / count(one)) if count(one) else None
        rewards[level] = reward * (score or 0.0)
        if score is None:
            return rewards
    return rewards | {"style": style(one, two, bands)}


def structure(one: str, two: str, bands: Bands) -> bool:
    fewest, most = bands.words
    return all(fewest <= len(part.split()) <= most for part in (one, two))


def style(one: str, two: str, bands: Bands) -> float:
    """0 to 0.98: transition words, and words in common."""
    text = two if bands.transitions_in == "two" else one + two
    return 0.4 * transitions(text) + 0.6 * min(overlap(one, two), bands.overlap) / bands.overlap


def transitions(text: str) -> float:
    """0.4 + 0.05 (c - 1) for c kinds of transition words, 0 for none."""
    text = text.lower()
    kinds = sum(any(entry in text for entry in entries) for entries in TRANSITIONS.values())
    return 0.4 + 0.05 * (kinds - 1) if kinds else 0.0


def overlap(one: str, two: str) -> float:
    """J of the parts' different words without stop words; 1 where neither has any."""
    first, second = different(one) - STOP_WORDS, different(two) - STOP_WORDS
    return len(first & second) / len(first | second) if first | second else 1.0


def different(text: str) -> set[str]:
    return set(WORD.findall(text.lower()))
