"""Each rule of tidy.py fires on a tree that breaks it, at the right line, and on nothing else."""

import pathlib
import tempfile
import unittest

import tidy
from rules_length import functions_of
from tree import Tree, strip_cxx

HEADER = "// A header.\n#pragma once\n"
LONG_FUNCTION = "void long_one() {\n" + "  step();\n" * 70 + "}\n"

# name -> (path, text, "line rule" of each finding)
CASES = {
    "torch in the server": (
        "server/rpc/a.cc",
        "#include <string>\n#include <ATen/ATen.h>\n",
        ["2 include"],
    ),
    "torch in the agent": ("worker/agent/a.cc", "#include <c10/core/Device.h>\n", ["1 include"]),
    "umbrella header": ("worker/model/a.cc", "#include <torch/torch.h>\n", ["1 include"]),
    "client includes server": (
        "client/cpp/a.cc",
        '#include "server/jobs/store.h"\n',
        ["1 include"],
    ),
    "scheduler with a database": (
        "server/scheduler/a.cc",
        "#include <SQLiteCpp/SQLiteCpp.h>\n",
        ["1 include"],
    ),
    "upward include": ("worker/data/a.cc", '\n#include "worker/trainer/loop.h"\n', ["2 layer"]),
    "downward include": ("worker/trainer/a.cc", '#include "worker/data/dataset.h"\n', []),
    "engine with gRPC": ("worker/optim/a.cc", "#include <grpcpp/grpcpp.h>\n", ["1 layer"]),
    "unknown layer": ("worker/magic/a.cc", '#include "worker/batch.h"\n', ["1 layer"]),
    "getenv": ("server/jobs/a.cc", 'auto* home = std::getenv("HOME");\n', ["1 getenv"]),
    "getenv in main": ("server/main.cc", 'auto* home = std::getenv("HOME");\n', []),
    "getenv in a comment": ("server/jobs/a.cc", "// getenv(1)\n/* sleep(\n3) */\n", []),
    "getenv in a string": ("server/jobs/a.cc", 'auto text = R"(sleep(3))" "getenv(";\n', []),
    "sleep": ("client/cpp/a.cc", "\n\nstd::this_thread::sleep_for(10ms);\n", ["3 sleep"]),
    "pickle": ("worker/model/a.cc", "torch::load(model, path);\n", ["1 pickle"]),
    "unbounded call": ("worker/agent/a.cc", "sprintf(buffer, path);\n", ["1 call"]),
    "bare header": ("worker/model/a.h", "int f();\n", ["1 header", "1 header"]),
    "good header": ("worker/model/a.h", HEADER, []),
    "wide line": ("worker/model/a.cc", "\n//" + "x" * 100 + "\n", ["2 columns"]),
    "blank at the end": ("worker/model/a.cc", "int x; \n", ["1 blank"]),
    "long file": ("worker/model/a.cc", "int x;\n" * 501, ["1 length"]),
    "long function": ("worker/model/a.cc", "\n" + LONG_FUNCTION, ["2 length"]),
    "undone": ("docs/a.md", "# A\n\nTO" + "DO: write\n", ["3 undone"]),
    "unknown host": ("scripts/a.sh", "get https://example.net/x\n", ["1 host"]),
    "machine path": ("docs/a.md", "See /ro" + "ot/notes.\n", ["1 machine"]),
    "large file": ("tests/data.txt", "x" * (1 << 20) + "x", ["1 size"]),
    "dead link": ("docs/a.md", "# A\n[b](b.md)\n", ["2 link"]),
    "dead anchor": ("docs/a.md", "# A b\n[x](#a-c) [y](#a-b)\n", ["2 link"]),
    "dead path": ("docs/a.md", "See `worker/none.cc` and `worker/FAMILY.cc`.\n", ["1 path"]),
    "bare proto field": (
        "proto/a.proto",
        "message A {\n  // Said.\n  int32 said = 1;\n  int32 knob = 2;\n  int32 rank = 3;\n}\n",
        ["4 field"],
    ),
}


def findings(files: dict[str, str]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        return [f"{found.line} {found.rule}" for found in tidy.run(Tree(root))]


class RulesTest(unittest.TestCase):
    def test_each_rule_fires_where_it_is_broken(self):
        for name, (path, text, expected) in CASES.items():
            with self.subTest(name):
                self.assertEqual(findings({path: text}), expected)

    def test_folders_of_one_layer_may_not_include_in_circles(self):
        files = {
            "worker/data/a.cc": '#include "worker/model/b.h"\n',
            "worker/model/b.h": HEADER + '#include "worker/data/c.h"\n',
        }
        self.assertEqual(findings(files), ["1 layer", "3 layer"])

    def test_commands_of_documents_exist(self):
        files = {
            "Makefile": "build:\n\ttrue\n",
            "client/cli/main.cc": 'app.add_subcommand("run", "")\n',
            "docs/a.md": "`make build`, `tessera run x`\n\n```\nmake fly\ntessera jump\n```\n",
        }
        self.assertEqual(findings(files), ["4 command", "5 command"])

    def test_ratchet_only_goes_down(self):
        def with_row(row: str) -> list[str]:
            return findings({"worker/model/a.cc": LONG_FUNCTION, tidy.RATCHET: row + "\n"})

        self.assertEqual(with_row("72 worker/model/a.cc long_one"), [])
        self.assertEqual(with_row("71 worker/model/a.cc long_one"), ["1 length"])
        self.assertEqual(with_row("73 worker/model/a.cc long_one"), ["1 ratchet"])
        self.assertEqual(with_row("99 worker/model/a.cc other"), ["1 ratchet", "1 length"])


class ParsingTest(unittest.TestCase):
    def test_functions_are_found_at_every_level(self):
        code = (
            "namespace a {\nint f(int x) {\n  if (x) {\n    g({1});\n  }\n}\n"
            "class C {\n  C() : a_{1}, b_(2) {\n    h();\n  }\n"
            "  std::vector<int> v_ = {1, 2};\n};\n"
            "enum class E { kA };\nconst int kTable[] = {\n1,\n2};\n}\n"
        )
        longest = {}
        for line, name, lines in functions_of(code):
            longest[line, name] = max(lines, longest.get((line, name), 0))
        self.assertEqual(longest, {(2, "f"): 5, (8, "C"): 3})

    def test_stripping_keeps_lines_and_digit_separators(self):
        text = "int a = 1'000; // x\n/* y\n*/ char c = '\"'; auto s = \"}\";\n"
        stripped = strip_cxx(text)
        self.assertEqual(stripped.count("\n"), text.count("\n"))
        self.assertIn("1'000;", stripped)
        self.assertNotIn("}", stripped)


if __name__ == "__main__":
    unittest.main()
