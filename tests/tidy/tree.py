"""The files of the tree, as the rules read them."""

import dataclasses
import functools
import pathlib
import re
import subprocess

CXX = (".cc", ".h", ".cu")
PRODUCT = ("client/", "proto/spec/", "server/", "worker/")
# Own name of each rule, so that this folder may spell what the rules forbid.
SELF = "tests/tidy/"
SKIPPED_DIRS = {".git", "build", "demo", "node_modules"}


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


_CXX_TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<d>[^(]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)


def strip_cxx(text: str) -> str:
    """The code alone: comments and literals become blanks, line breaks stay."""

    def blank(match: re.Match[str]) -> str:
        token = match.group()
        if token[0] == "'" and match.start() and text[match.start() - 1].isalnum():
            return token  # 1'000'000
        return re.sub(r"[^\n]", " ", token)

    return _CXX_TOKENS.sub(blank, text)


class Tree:
    def __init__(self, root: pathlib.Path):
        self.root = root
        self.files = sorted(self._list())

    def _list(self) -> list[str]:
        """What git tracks or would; all files where there is no git."""
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        if (self.root / ".git").exists():
            listed = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
            if listed.returncode == 0:
                return [path for path in listed.stdout.splitlines() if (self.root / path).is_file()]
        paths = (path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file())
        return [
            str(path)
            for path in paths
            if not any(part in SKIPPED_DIRS or part.startswith(".venv") for part in path.parts)
        ]

    def matching(self, *suffixes: str, under: tuple[str, ...] = ("",)) -> list[str]:
        return [path for path in self.files if path.endswith(suffixes) and path.startswith(under)]

    @functools.cache  # noqa: B019 - one tree a process
    def text(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    @functools.cache  # noqa: B019
    def code(self, path: str) -> str:
        return strip_cxx(self.text(path))
