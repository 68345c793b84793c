"""How long files and functions are."""

import re
from collections.abc import Iterator

from tree import CXX, PRODUCT, Tree, line_of

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60

_PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_SCOPE = re.compile(
    r"^\s*(?:inline\s+)?namespace\b|^\s*extern\b(?!.*\()"
    r"|\b(?:class|struct|union|enum)\b(?![^<]*>)"
)


def file_lengths(tree: Tree) -> Iterator[tuple[str, int, str, int]]:
    """(path, line, name, lines) of each file."""
    folders = (*PRODUCT, "benchmarks/", "examples/", "scripts/", "tests/")
    for path in tree.matching(*CXX, ".py", ".sh", under=folders):
        yield path, 1, "the-file", tree.text(path).count("\n")


def function_lengths(tree: Tree) -> Iterator[tuple[str, int, str, int]]:
    """(path, line, name, lines) of each function of the product."""
    for path in tree.matching(*CXX, under=PRODUCT):
        for line, name, lines in functions_of(tree.code(path)):
            yield path, line, name, lines


def functions_of(code: str) -> Iterator[tuple[int, str, int]]:
    """(first line, name, lines) of each function body.

    Knows no grammar: a block at namespace or class level whose head has an argument list is a
    function. A constructor's `a_{1}` counts as a body of its own, and the head goes on after it.
    """
    code = _PREPROCESSOR.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), code)
    blocks: list[str] = []
    head_start = function_start = 0
    after_function = False
    for match in re.finditer(r"[{};]", code):
        here, symbol = match.start(), match.group()
        if symbol == "{":
            head = code[head_start:here]
            goes_on = after_function and head.lstrip()[:1] in ("", ",")
            kind = "block" if "function" in blocks else _kind(head, goes_on)
            if kind == "function" and not goes_on:
                function_start = here - len(head.lstrip())
            blocks.append(kind)
        elif symbol == "}" and blocks:
            after_function = blocks.pop() == "function"
            if after_function:
                first = line_of(code, function_start)
                name = _name(code[function_start:here])
                yield first, name, line_of(code, here) - first + 1
        if "function" not in blocks:
            head_start = here + 1


def _kind(head: str, goes_on: bool) -> str:
    if goes_on:
        return "function"
    if _SCOPE.search(head.split("(")[0]):
        return "scope"
    return "function" if ")" in head else "value"


def _name(function: str) -> str:
    found = re.search(r"([\w:~]+|operator\S+)\s*\(", function)
    return found.group(1) if found else "?"
