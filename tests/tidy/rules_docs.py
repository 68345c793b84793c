"""Rules of the documents: links lead somewhere, and commands and files that are named exist."""

import re
from collections.abc import Iterator

from tree import Finding, Tree, line_of

_FENCE = re.compile(r"^```[^\n]*\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_SPAN = re.compile(r"`(?P<code>[^`\n]+)`")
_HEADING = re.compile(r"^#+\s+(?P<text>.+?)\s*$", re.MULTILINE)
_MAKE = re.compile(r"(?:^|[;&]\s*|\$ )make (?P<target>[a-z][a-z-]*)", re.MULTILINE)
_TESSERA = re.compile(
    r"(?:^|[;&]\s*|\$ )(?:build/bin/)?tessera (?P<command>[a-z][a-z-]*)", re.MULTILINE
)
_SUBCOMMAND = re.compile(r'add_\w*command\(\s*"(?P<name>[a-z-]+)"')
_TARGET = re.compile(r"^(?P<name>[a-z-]+):", re.MULTILINE)
_TOP = (
    "client",
    "cmake",
    "deploy",
    "docs",
    "examples",
    "benchmarks",
    "proto",
    "scripts",
    "server",
    "tests",
    "worker",
)
_PATH = re.compile(rf"(?:{'|'.join(_TOP)})/[\w./-]*")


def _anchor(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return kept.replace(" ", "-")


def _prose(text: str) -> str:
    return _FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def _code(text: str) -> Iterator[tuple[int, str]]:
    """(offset, code) of fenced blocks and of spans in the prose."""
    for match in _FENCE.finditer(text):
        yield match.start("body"), match["body"]
    for match in _SPAN.finditer(_prose(text)):
        yield match.start("code"), match["code"]


def check_links(tree: Tree) -> Iterator[Finding]:
    for path in tree.matching(".md"):
        text = tree.text(path)
        for match in _LINK.finditer(_prose(text)):
            target, _, anchor = match["target"].partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            line = line_of(text, match.start())
            file = (tree.root / path).parent / target if target else tree.root / path
            if not file.exists():
                yield Finding(path, line, "link", f"{target} does not exist")
            elif anchor and file.suffix == ".md":
                headings = _HEADING.finditer(file.read_text(encoding="utf-8"))
                if anchor not in {_anchor(heading["text"]) for heading in headings}:
                    yield Finding(
                        path, line, "link", f"{match['target']}: there is no such heading"
                    )


def check_commands(tree: Tree) -> Iterator[Finding]:
    makefile = tree.text("Makefile") if "Makefile" in tree.files else ""
    targets = set(_TARGET.findall(makefile))
    sources = tree.matching(".cc", under=("client/cli/",))
    subcommands = {name for path in sources for name in _SUBCOMMAND.findall(tree.text(path))}
    for path in tree.matching(".md"):
        text = tree.text(path)
        for offset, code in _code(text):
            for pattern, known, what in (
                (_MAKE, targets, "make target"),
                (_TESSERA, subcommands, "command of tessera"),
            ):
                for match in pattern.finditer(code):
                    name = match.group(1)
                    if known and name not in known:
                        line = line_of(text, offset + match.start())
                        yield Finding(path, line, "command", f"there is no {what} `{name}`")


def check_paths(tree: Tree) -> Iterator[Finding]:
    """A path of the tree in backticks is there. Placeholders in capitals are not paths."""
    for path in tree.matching(".md"):
        text = tree.text(path)
        for match in _SPAN.finditer(_prose(text)):
            named = match["code"].split(" ")[0].rstrip(":,")
            if not _PATH.fullmatch(named) or re.search(r"[A-Z]{3,}", named.replace("README", "")):
                continue
            if not (tree.root / named).exists():
                line = line_of(text, match.start())
                yield Finding(path, line, "path", f"{named} does not exist")
