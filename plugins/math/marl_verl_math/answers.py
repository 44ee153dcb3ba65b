r"""What mathematical texts answer: the last `\boxed{...}`, or the last number."""

import re

_BOX = re.compile(r"\\f?boxed(?:\s*(?P<brace>\{)|(?![a-zA-Z])\s*)")
_FORMULA = re.compile(r"[^$\n]*?(?=\$|\\\)|\\\]|\n|$)")
_WORD = re.compile(r"[-+]?[\d.\\(][^\s$]*")
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?|-?\.\d+")


def boxed(text: str) -> str | None:
    r"""The content of the last closed `\boxed{...}`, with nested braces; None without one.

    Of a box without braces, such as `$\boxed 2$`, it is the rest of the formula, or outside of one a number after it.
    """
    closing: dict[int, int] = {}
    opened: list[int] = []
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened:
            closing[opened.pop()] = brace.start()
    for box in reversed(list(_BOX.finditer(text))):
        if box["brace"] and box.end() in closing:
            return text[box.end() : closing[box.end()]].strip()
        if not box["brace"]:
            bare = (_FORMULA if _in_formula(text[: box.start()]) else _WORD).match(text, box.end())
            if bare is not None and (content := bare[0].strip().rstrip(".,;:")):
                return content
    return None


def _in_formula(before: str) -> bool:
    opened = any(before.rfind(begin) > before.rfind(end) for begin, end in ((r"\(", r"\)"), (r"\[", r"\]")))
    return opened or before.replace("$$", "$").count("$") % 2 == 1


def stated(text: str) -> str | None:
    r"""The answer that a text gives: the last `\boxed{...}`, or else its last number. None for an empty box."""
    box = boxed(text)
    return (box if box is not None else next(reversed(_NUMBER.findall(text)), None)) or None
