"""The Python package as a job meets it: real servers in processes of their own, which are slow,
wrong, killed, and come back.

python_test.py --judge JUDGE_PROGRAM --helper TESSERA_REWARDS
"""

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from reward_server import SECONDS, RewardServer, build_package, next_line

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples/rewards/server.py"
FUNCTIONS = '''
import asyncio, os, pathlib
from tessera.rewards import reward, serve

HERE = pathlib.Path(os.environ["HERE"])

@reward
def length(completions, **columns):
    with (HERE / "asked").open("a") as asked:
        asked.write(f"{len(completions)} {sorted(columns)}\\n")
    return [len(text) for text in completions]

@reward(name="is-answer")
async def is_answer(completions, answer, completion_ids):
    await asyncio.sleep(0)
    return [None if a is None else float(c == str(a)) for c, a in zip(completions, answer)]

@reward
def blocks(completions):
    """The first call ends when the test has opened and closed the other end."""
    if not (HERE / "blocked").exists():
        (HERE / "blocked").touch()
        (HERE / "fifo").open().read()
    return [1] * len(completions)

@reward
def short(completions):
    return [1]

@reward
def infinite(completions):
    return [float("inf")] * len(completions)

@reward
def missing(completions, answers):
    return answers

serve(address=os.environ["ADDRESS"], **eval(os.environ.get("OPTIONS", "{}")))
'''


class Server(RewardServer):
    """One of FUNCTIONS."""

    def __init__(self, here, address, **options):
        super().__init__(
            PYTHON_PATH, FUNCTIONS, HERE=str(here), ADDRESS=address, OPTIONS=repr(options)
        )


class Judge:
    """judge_program, of a job with these servers by the names of their functions."""

    def __init__(self, *servers):
        funcs = [{"name": name, "server": options} for name, options in servers]
        # Unbuffered: select() sees what readline() has not taken.
        self.process = subprocess.Popen(
            [ARGUMENTS.judge, ARGUMENTS.helper],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._write({"method": {"grpo": {}}, "rewardFuncs": funcs})

    def _write(self, line):
        self.process.stdin.write(json.dumps(line).encode() + b"\n")

    def ask(self, texts, record=None, step=1):
        completions = [
            {"prompt": "?", "completion": text, "record": record or {}, "completion_ids": [1, 2]}
            for text in texts
        ]
        self._write({"step": step, "completions": completions})

    def line(self):
        return json.loads(next_line(self.process.stdout))

    def result(self):
        """The next line that does not say what is waited for."""
        while "waiting" in (line := self.line()):
            pass
        return line

    def end(self):
        self.process.stdin.close()
        self.process.wait(SECONDS)
        self.process.stdout.close()


class PythonServers(unittest.TestCase):
    def setUp(self):
        self.here = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        os.mkfifo(self.here / "fifo")
        self.socket = f"unix://{self.here}/rewards.sock"

    def serve(self, address=None, **options):
        server = Server(self.here, address or self.socket, **options)
        self.addCleanup(server.end)
        return server

    def judge(self, *servers):
        judge = Judge(*servers)
        self.addCleanup(judge.end)
        return judge

    def test_integers_are_exact(self):
        server = self.serve()
        judge = self.judge(("is-answer", {"address": server.address}))
        wide = 2**53 + 1
        for answer in (wide, -wide, 2**64 - 1, 7, 0.5):
            judge.ask([str(answer), "8"], {"answer": answer, "beside": [wide, 3.0]})
            self.assertEqual(judge.line(), {"scores": [[1], [0]]})

    def test_scores_by_name(self):
        server = self.serve("127.0.0.1:0")
        judge = self.judge(
            ("length", {"address": server.address, "maxBatchSize": 2}),
            ("is-answer", {"address": server.address}),
        )
        judge.ask(["a", "42", "é"], {"answer": 42, "kind": "sum"})
        self.assertEqual(judge.line(), {"scores": [[1, 0], [2, 1], [1, 0]]})
        asked = sorted((self.here / "asked").read_text().splitlines())
        columns = [
            "answer", "completion_ids", "job_id", "kind", "prompt_ids", "prompts", "step",
            "truncated",
        ]  # fmt: skip
        self.assertEqual(asked, [f"1 {columns}", f"2 {columns}"])
        judge.ask(["x"], {"answer": None}, step=2)
        self.assertEqual(judge.line(), {"scores": [[1, None]]})

    def test_a_killed_server_is_waited_for(self):
        server = self.serve()
        judge = self.judge(("blocks", {"address": self.socket}))
        judge.ask(["a", "b"])
        # The server has the question when it opens the other end.
        with (self.here / "fifo").open("w"):
            server.kill()
            waiting = judge.line()["waiting"]
            self.assertIn("does not answer (UNAVAILABLE", waiting)
            self.assertIn(f'reward_funcs[0].server.address is "{self.socket}"', waiting)
        self.serve()
        self.assertEqual(judge.line(), {"waiting": ""})
        self.assertEqual(judge.line(), {"scores": [[1], [1]]})

    def test_a_server_that_never_answers_is_asked_again(self):
        self.serve()
        judge = self.judge(("blocks", {"address": self.socket, "timeoutSeconds": 0.5}))
        judge.ask(["a"])
        self.assertIn("DEADLINE_EXCEEDED", judge.line()["waiting"])
        self.assertEqual(judge.result(), {"scores": [[1]]})
        # Lets the first call end, or the server would wait for it.
        (self.here / "fifo").open("w").close()

    def test_what_a_function_raises_is_waited_out(self):
        self.serve()
        judge = self.judge(("missing", {"address": self.socket, "maxWaitSeconds": 0}))
        judge.ask(["a"])
        result = judge.result()
        self.assertEqual(result["field"], "reward_funcs[0].server")
        self.assertIn("did not answer for 0 seconds", result["error"])
        self.assertIn("INTERNAL: TypeError: missing() missing 1 required", result["error"])

    def test_bad_scores_end_the_job(self):
        self.serve()
        for name, message in [
            ("short", "short returned 1 scores for 2 completions, must return one for each"),
            ("infinite", "infinite returned the score inf, must return finite numbers"),
            ("other", 'there is no function "other", only length, is-answer, '),
        ]:
            judge = self.judge((name, {"address": self.socket}))
            judge.ask(["a", "b"])
            self.assertIn(
                f"whose server answered INVALID_ARGUMENT: {message}", judge.line()["error"]
            )

    def test_tls(self):
        key, certificate = self.here / "key.pem", self.here / "cert.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
             "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        files = {"certificate_file": str(certificate), "private_key_file": str(key)}
        server = self.serve("localhost:0", **files)
        judge = self.judge(("length", {"address": server.address, "caFile": str(certificate)}))
        judge.ask(["abc"])
        self.assertEqual(judge.line(), {"scores": [[3]]})
        plain = self.judge(("length", {"address": server.address, "maxWaitSeconds": 0}))
        plain.ask(["abc"])
        self.assertIn("UNAVAILABLE", plain.result()["error"])

    def test_the_helper_ends_with_its_job(self):
        self.serve()
        judge = self.judge(("length", {"address": self.socket}))
        judge.ask(["a"])
        judge.line()
        children = pathlib.Path(f"/proc/{judge.process.pid}/task/{judge.process.pid}/children")
        helper = os.pidfd_open(int(children.read_text()))
        self.addCleanup(os.close, helper)
        judge.process.kill()
        self.assertTrue(select.select([helper], [], [], SECONDS)[0])

    def test_the_example(self):
        spec = importlib.util.spec_from_file_location("example", EXAMPLE)
        example = importlib.util.module_from_spec(spec)
        with contextlib.ExitStack() as stack:
            sys.path.insert(0, str(PYTHON_PATH))
            stack.callback(sys.path.remove, str(PYTHON_PATH))
            spec.loader.exec_module(example)
        scores = example.correct(["2 + 3 = 5", "6", "none", "5"], answer=[5, 5, 5, None])
        self.assertEqual(scores, [1, 0, 0, None])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--judge", required=True)
    parser.add_argument("--helper", required=True)
    ARGUMENTS, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as built:
        PYTHON_PATH = build_package(pathlib.Path(built))
        unittest.main(argv=[sys.argv[0], *rest])
