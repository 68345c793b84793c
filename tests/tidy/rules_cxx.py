"""What C++ sources may not call, and how files look."""

import re
from collections.abc import Iterator

from tree import CXX, PRODUCT, Finding, Tree, line_of

MAX_COLUMNS = 100

_CALLS = [
    (
        re.compile(r"\b(?:secure_)?(?:getenv|setenv|putenv|unsetenv)\s*\("),
        "getenv",
        "only a main.cc touches the environment",
    ),
    (
        re.compile(r"\b(?:sleep_for|sleep_until|usleep|nanosleep|sleep|SleepFor)\s*\("),
        "sleep",
        "wait for an event with a deadline",
    ),
    (
        re.compile(r"\btorch::(?:load|pickle_load|jit::\w+)\s*\("),
        "pickle",
        "weights are safetensors only",
    ),
    (
        re.compile(r"\b(?:strcpy|strcat|sprintf|gets|system|popen)\s*\("),
        "call",
        "has no bound, or runs a shell",
    ),
]


def check_calls(tree: Tree) -> Iterator[Finding]:
    for path in tree.matching(*CXX, under=PRODUCT):
        code = tree.code(path)
        for pattern, rule, why in _CALLS:
            if rule == "getenv" and path.endswith("/main.cc"):
                continue
            for match in pattern.finditer(code):
                before = code[: match.start()].rstrip()
                if before.endswith((".", "->")):  # a member of that name
                    continue
                yield Finding(
                    path, line_of(code, match.start()), rule, f"{match.group().strip('( ')}: {why}"
                )


def check_headers(tree: Tree) -> Iterator[Finding]:
    for path in tree.matching(".h", under=PRODUCT):
        text = tree.text(path)
        if not text.startswith("// "):
            yield Finding(path, 1, "header", "begins with a comment: the header is the contract")
        if "\n#pragma once\n" not in text:
            yield Finding(path, 1, "header", "has no #pragma once")


def check_columns(tree: Tree) -> Iterator[Finding]:
    for path in tree.matching(*CXX, ".py", ".sh", ".cmake", "CMakeLists.txt"):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if len(line) > MAX_COLUMNS:
                yield Finding(
                    path, number, "columns", f"{len(line)} columns; at most {MAX_COLUMNS}"
                )
            if line != line.rstrip():
                yield Finding(path, number, "blank", "blanks at the end of the line")
