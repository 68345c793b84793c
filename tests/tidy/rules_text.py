"""Rules of all text: nothing left undone, no name of a machine or a registry."""

import re
from collections.abc import Iterator

from tree import SELF, Finding, Tree, line_of

_UNDONE = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
_MACHINE_PATH = re.compile(r"(?<![\w./])/(?:work|root)/\w+")
_URL = re.compile(r"\bhttps?://(?P<host>[\w.-]+)")
# Pages a reader may want, and this machine. What installs things comes from the tools' own
# settings.
_KNOWN_HOSTS = {
    "localhost",
    "127.0.0.1",
    "www.apache.org",
    "www.w3.org",
    "a.b",  # in texts for the tokenizer
    "huggingface.co",
    "github.com",
    # In package-lock.json, who funds a package.
    "opencollective.com",
    "tidelift.com",
}
_BINARY = (".png", ".ico", ".woff2", ".parquet", ".safetensors", ".db", ".model")
MAX_BYTES = 1 << 20


def _texts(tree: Tree) -> Iterator[tuple[str, str]]:
    for path in tree.files:
        if not path.startswith(SELF) and not path.endswith(_BINARY):
            yield path, tree.text(path)


def check_undone(tree: Tree) -> Iterator[Finding]:
    for path, text in _texts(tree):
        for match in _UNDONE.finditer(text):
            yield Finding(
                path,
                line_of(text, match.start()),
                "undone",
                f"{match.group()}: do it, or leave it out",
            )


def check_hosts(tree: Tree) -> Iterator[Finding]:
    for path, text in _texts(tree):
        for match in _URL.finditer(text):
            if match["host"] not in _KNOWN_HOSTS:
                message = f"{match['host']} is not among the hosts that may be named"
                yield Finding(path, line_of(text, match.start()), "host", message)
        for match in _MACHINE_PATH.finditer(text):
            yield Finding(
                path,
                line_of(text, match.start()),
                "machine",
                f"{match.group()} is one machine's path",
            )


def check_sizes(tree: Tree) -> Iterator[Finding]:
    for path in tree.files:
        size = (tree.root / path).stat().st_size
        if size > MAX_BYTES:
            yield Finding(
                path, 1, "size", f"{size} bytes; at most {MAX_BYTES}: generate it instead"
            )
