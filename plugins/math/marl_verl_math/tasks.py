r"""The task set `math`: problems with one final answer, from public sets or files, compared by math-verify.

A task's `data` has the answer: {"answer": text}. A team's answer is a text, whose last `\boxed{...}` counts, or the
list of the answers of its acts, in order: [["tool-user", "41"], ["reasoner", "42"]], null where an act gave none; the
last one counts.

Of a public set, the final answer is the text after "####" (GSM8K), the last box of a solution (MATH), or the field
itself. Several answers of one problem (OlympiadBench) all belong to it, in any order.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from marl_verl_datasets import Fields, LeftOut, PublicSet, PublicTasks, task_id

from marl_verl.tasks import Split, Task
from marl_verl_math.answers import boxed
from marl_verl_math.matcher import same

_BEFORE = re.compile(r"^Solve the following math problem step by step\.[^\n]*\n+")
_AFTER = re.compile(
    r"\s*(?:Remember to put your answer on its own line after \"Answer:\"\.?"
    r"|Let'?s think step by step[^\n]*\\boxed\{\}[^\n]*)\s*$",
    re.IGNORECASE,
)
"""Instructions that sets in verl's form add to a problem; removed, since workflows have their own."""


def marked(solution: str) -> str | None:
    """The answer that a solution marks, by "####" or a box; None without a mark."""
    return (solution.rpartition("####")[2].strip() if "####" in solution else boxed(solution)) or None


def plain(problem: str, answer: str, *solution: str) -> Callable[[Fields], Task]:
    """Rows with a problem and an answer, which may be marked in a solution; without an answer, that of the solution."""

    def task(row: Fields) -> Task:
        text = row.text(answer, *solution)
        final_answer = marked(text)
        if final_answer is None and answer not in row:
            raise LeftOut("without a marked answer")
        return _task(row.text(problem), final_answer or text)

    return task


def dapo(row: Fields) -> Task:
    """A row in verl's form, `prompt` as chat messages or text. The answer is `reward_model.ground_truth`."""
    prompt = row.value("prompt")
    if not isinstance(prompt, str):
        messages = row.items("prompt")
        users = [message for message in messages if isinstance(message, Mapping) and message.get("role") == "user"]
        if len(users) != 1:
            raise row.wrong("must be a text, or have one message of the user", prompt, "prompt")
        prompt = Fields(users[0], f"{row.where}, field 'prompt'").text("content")
    return _task(_AFTER.sub("", _BEFORE.sub("", prompt)).strip(), row.inner("reward_model").text("ground_truth"))


def olympiad(row: Fields) -> Task:
    """A row of OlympiadBench: `question`, after its `context` if it has one, and the list `final_answer`."""
    if "image_1" in row:
        raise LeftOut("with images")
    if "final_answer" not in row and row.row.get("question_type", "").startswith("Theorem"):
        raise LeftOut("proofs")
    answers = [text.strip().strip("$").strip() for text in row.texts("final_answer")]
    context = f"{row.text('context')}\n\n" if str(row.row.get("context") or "").strip() else ""
    return _task(context + row.text("question"), ", ".join(answers))


def _task(problem: str, answer: str) -> Task:
    return Task(task_id("math", problem), problem, {"answer": answer})


Splits = Mapping[Split, str]
TRAIN: Splits = {"train": "train"}
TEST: Splits = {"test": "test"}
TRAIN_AS_TEST: Splits = {"test": "train"}  # the hub calls the only split of a test set "train"

SETS: Mapping[str, PublicSet] = {
    "dapo-math-17k": PublicSet("BytedTsinghua-SIA/DAPO-Math-17k", dapo, splits=TRAIN),
    "dapo-filter": PublicSet("aaabiao/dapo_filter", dapo, splits=TRAIN),
    "polaris-53k": PublicSet("POLARIS-Project/Polaris-Dataset-53K", plain("problem", "answer"), splits=TRAIN),
    "math": PublicSet("DigitalLearningGmbH/MATH-lighteval", plain("problem", "answer", "solution")),
    "gsm8k": PublicSet("openai/gsm8k", plain("question", "answer"), config="main"),
    "aime24": PublicSet("HuggingFaceH4/aime_2024", plain("problem", "answer", "solution"), splits=TRAIN_AS_TEST),
    "aime25": PublicSet("math-ai/aime25", plain("problem", "answer"), splits=TEST),
    "math-500": PublicSet("HuggingFaceH4/MATH-500", plain("problem", "answer"), splits=TEST),
    "amc23": PublicSet("math-ai/amc23", plain("question", "answer"), splits=TEST),
    "minerva": PublicSet("math-ai/minervamath", plain("question", "answer"), splits=TEST),
    "olympiadbench": PublicSet("Hothan/OlympiadBench", olympiad, config="OE_TO_maths_en_COMP", splits=TRAIN_AS_TEST),
}


Answers = list[list[str | None]]


class MathTasks(PublicTasks):
    """Problems with a final answer."""

    quick = True

    sets: ClassVar = SETS

    def check(self, task: Task) -> None:
        truth(task)

    def row_task(self, row: Fields) -> Task:
        task = super().row_task(row)
        if "answer" not in self.fields:
            return task
        text = row.text("answer")
        return Task(task.id, task.prompt, {**task.data, "answer": marked(text) or text})

    async def score(self, task: Task, answer: Any) -> float:
        """1 if the final answer is equal to the task's, else 0. MarlError for a task without an answer."""
        return await right(task, final(answer))

    def public_score(self, task: Task, answer: Any) -> float:
        """1 if there is a final answer, right or not, else 0."""
        return float(bool(final(answer)))


def final(answer: str | Answers) -> str | None:
    if isinstance(answer, str):
        return boxed(answer)
    return answer[-1][1] if answer else None


async def right(task: Task, answer: str | None) -> float:
    """1 for the task's answer, else 0. MarlError: the task has none."""
    return float(answer is not None and await same(answer, truth(task)))


def truth(task: Task) -> str:
    """The task's answer. MarlError without one."""
    return Fields(task.data, f"the data of task '{task.id}'").text("answer")
