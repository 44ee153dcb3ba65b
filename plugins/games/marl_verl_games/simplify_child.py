"""What simplifies an expression, in the process of `safe_scores`."""


def warm() -> None:
    """Import SymPy."""
    answer("Add(Symbol('x'), Integer(1))")


def answer(written: str) -> bool:
    """Whether an expression, written by SymPy's `srepr`, simplifies to 0."""
    import sympy

    return bool(sympy.simplify(eval(written, {"__builtins__": {}, **vars(sympy)})) == 0)
