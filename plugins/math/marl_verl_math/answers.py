r"""What mathematical texts answer: the last `\boxed{...}`, or the last number."""

import re

_BOX = re.compile(r"\\f?boxed(?:\s*(?P<brace>\{)|(?![a-zA-Z])\s*)")
_FORMULA = re.compile(r"[^$\n]*?(?=\$|\\\)|\\\]|\n|$)")
_WORD = re.compile(r"[-+]?[\d.\\(][^\s$]*")
_PLAIN = r"(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
_ARGUMENT = r"\{(?:[-+*/.(){}\d\s]|\\?sqrt|\\?pi|π|√)+?\}"
_PI = r"(?:\\?pi(?![a-zA-Z])|π)"
_FACTOR = (
    rf"(?:\\[dt]?frac(?:{_ARGUMENT}{_ARGUMENT}|\d\d)"
    r"|(?:(?<![a-zA-Z])\\?sqrt|√)(?:\(\d+\)|\{\d+\}|\d+)"
    rf"|(?<=[\d*)}}]){_PI}|(?<![a-zA-Z]){_PI}(?=/\d))"
)
_NUMBER = re.compile(rf"(?:(?<!\d)-)?(?:(?:{_PLAIN}\*?)?{_FACTOR}+(?:/\d+)?|{_PLAIN})")


def boxed(text: str) -> str | None:
    r"""The content of the last closed `\boxed{...}` that is not empty, with nested braces; None without a closed one.

    Of a box without braces, such as `$\boxed 2$`, it is the rest of the formula, or outside of one a number after it.
    """
    closing: dict[int, int] = {}
    opened: list[int] = []
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened:
            closing[opened.pop()] = brace.start()
    empty = None
    for box in reversed(list(_BOX.finditer(text))):
        if box["brace"] and box.end() in closing:
            if content := text[box.end() : closing[box.end()]].strip():
                return content
            empty = ""
        if not box["brace"]:
            bare = (_FORMULA if _in_formula(text[: box.start()]) else _WORD).match(text, box.end())
            if bare is not None and (content := bare[0].strip().rstrip(".,;:")):
                return content
    return empty


def _in_formula(before: str) -> bool:
    opened = any(before.rfind(begin) > before.rfind(end) for begin, end in ((r"\(", r"\)"), (r"\[", r"\]")))
    return opened or before.replace("$$", "$").count("$") % 2 == 1


def stated(text: str) -> str | None:
    r"""The answer that a text gives: the last `\boxed{...}`, or else its last number, which may have an exponent, be a
    fraction, or have roots and pi (1e-5, \frac{1}{2}, sqrt(3)/2). None where each box is empty."""
    box = boxed(text)
    return (box if box is not None else next(reversed(_NUMBER.findall(text.replace("−", "-"))), None)) or None
