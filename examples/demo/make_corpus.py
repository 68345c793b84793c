"""Writes a training corpus from text that is on every machine: Python's standard library.

A document is one function, or the documentation of a module or a class. Order and split depend only
on the library's files, so the same Python gives the same corpus.

    make_corpus.py OUT_DIR        writes these files, a {"text": ...} a line

    eval.jsonl         held out
    train.jsonl        what the demo trains on: little, so that two minutes go over it several times
    vocabulary.jsonl   all but eval.jsonl, for the tokenizer
"""

import ast
import hashlib
import json
import pathlib
import sys
import sysconfig
import textwrap

MIN_CHARS = 120
MAX_CHARS = 2400
TRAIN_CHARS = 120_000
EVAL_DOCUMENTS = 96
# Generated tables, translations of one text, and tests teach little.
SKIPPED = {"test", "tests", "idlelib", "lib2to3", "encodings", "site-packages", "dist-packages"}


def library_files(root: pathlib.Path) -> list[pathlib.Path]:
    files = (path for path in root.rglob("*.py") if not SKIPPED & set(path.relative_to(root).parts))
    return sorted(files)


def documents_of(source: str) -> list[str]:
    """Functions in full, with their decorators; docstrings of modules and classes."""
    documents = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            lines = source.splitlines()[first - 1 : node.end_lineno]
            documents.append(textwrap.dedent("\n".join(lines)))
        elif isinstance(node, ast.Module | ast.ClassDef):
            documents.append(ast.get_docstring(node) or "")
    return [text for text in documents if MIN_CHARS <= len(text) <= MAX_CHARS]


def collect(root: pathlib.Path) -> list[str]:
    seen = {}
    for path in library_files(root):
        try:
            source = path.read_text(encoding="utf-8")
            texts = documents_of(source)
        except (SyntaxError, UnicodeDecodeError):  # templates and bad-encoding samples
            continue
        for text in texts:
            seen.setdefault(hashlib.sha256(text.encode()).hexdigest(), text)
    return [text for _, text in sorted(seen.items())]


def take_chars(texts: list[str], budget: int) -> list[str]:
    taken = []
    for text in texts:
        if budget < len(text):
            break
        taken.append(text)
        budget -= len(text)
    return taken


def write_jsonl(path: pathlib.Path, texts: list[str]) -> None:
    lines = (json.dumps({"text": text}, ensure_ascii=False) for text in texts)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path}: {len(texts)} documents, {path.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    texts = collect(pathlib.Path(sysconfig.get_path("stdlib")))
    if len(texts) < 10 * EVAL_DOCUMENTS:
        sys.exit(
            f"only {len(texts)} documents in the standard library at {sysconfig.get_path('stdlib')}"
        )
    out.mkdir(parents=True, exist_ok=True)
    write_jsonl(out / "eval.jsonl", texts[:EVAL_DOCUMENTS])
    write_jsonl(out / "train.jsonl", take_chars(texts[EVAL_DOCUMENTS:], TRAIN_CHARS))
    write_jsonl(out / "vocabulary.jsonl", texts[EVAL_DOCUMENTS:])


if __name__ == "__main__":
    main()
