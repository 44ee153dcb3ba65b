"""Equations as MathML, which browsers draw without a script. GitHub draws the same sources in docs/*.md.

A block of language `math` is a displayed equation; $`x`$ is one in a line.
"""

import re
from typing import Any

from latex2mathml.converter import convert

BLOCK = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"\$`([^`]+)`\$")


def hidden(markdown: str, page: Any) -> str:
    """The text with a mark in place of each equation, so that Markdown does not change the MathML."""
    found = page.meta.setdefault("equations", [])

    def mark(latex: str, display: str) -> str:
        found.append(convert(latex.strip(), display=display))
        return f"@@equation{len(found) - 1}@@"

    markdown = BLOCK.sub(lambda match: mark(match[1], "block"), markdown)
    return INLINE.sub(lambda match: mark(match[1], "inline"), markdown)


def rendered(html: str, page: Any) -> str:
    return re.sub(r"@@equation(\d+)@@", lambda match: page.meta["equations"][int(match[1])], html)
