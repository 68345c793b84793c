"""Rules of the tree that a machine can check. Each finding is one line, `path:line: rule: message`.

tidy.py [ROOT]
"""

import pathlib
import sys
from collections.abc import Iterator

import rules_cxx
import rules_docs
import rules_includes
import rules_length
import rules_proto
import rules_text
from tree import SELF, Finding, Tree

RATCHET = SELF + "ratchet.txt"


def read_ratchet(tree: Tree) -> dict[tuple[str, str], tuple[int, int]]:
    """(path, name) -> (lines allowed, line of the row)."""
    rows = {}
    if RATCHET in tree.files:
        for number, row in enumerate(tree.text(RATCHET).splitlines(), 1):
            if row and not row.startswith("#"):
                lines, path, name = row.split(maxsplit=2)
                rows[path, name] = int(lines), number
    return rows


def check_lengths(tree: Tree) -> Iterator[Finding]:
    allowed = read_ratchet(tree)
    measured = [(*row, rules_length.MAX_FILE_LINES) for row in rules_length.file_lengths(tree)]
    measured += [
        (*row, rules_length.MAX_FUNCTION_LINES) for row in rules_length.function_lengths(tree)
    ]
    for path, line, name, lines, most in measured:
        limit, row = allowed.pop((path, name), (most, 0)) if lines > most else (most, 0)
        if lines > limit:
            yield Finding(path, line, "length", f"{name} has {lines} lines; at most {limit}")
        elif row and lines < limit:
            yield Finding(
                RATCHET, row, "ratchet", f"{path} {name} is down to {lines} lines: lower its row"
            )
    for (path, name), (_, row) in allowed.items():
        yield Finding(
            RATCHET, row, "ratchet", f"{path} {name} is short enough, or gone: delete its row"
        )


RULES = [
    rules_includes.check_includes,
    rules_includes.check_engine_layers,
    rules_cxx.check_calls,
    rules_cxx.check_headers,
    rules_cxx.check_columns,
    check_lengths,
    rules_text.check_undone,
    rules_text.check_hosts,
    rules_text.check_sizes,
    rules_docs.check_links,
    rules_docs.check_commands,
    rules_docs.check_paths,
    rules_proto.check_fields,
]


def run(tree: Tree) -> list[Finding]:
    return sorted({finding for rule in RULES for finding in rule(tree)})


def main() -> int:
    here = pathlib.Path(__file__).resolve().parents[2]
    tree = Tree(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here)
    findings = run(tree)
    for finding in findings:
        print(finding)
    print(f"tidy: {len(tree.files)} files, {len(findings)} findings", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
