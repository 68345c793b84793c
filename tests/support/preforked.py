"""Starts a program often without loading it each time: see preforked.cc."""

import os
import subprocess
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError


class Child:
    """What of a subprocess.Popen the tests use."""

    def __init__(self, pid):
        self.pid = pid
        self.code = Future()

    def wait(self, timeout=None):
        try:
            return self.code.result(timeout)
        except NotYetError:
            raise subprocess.TimeoutExpired("a forked child", timeout) from None

    def kill(self):
        if not self.code.done():
            os.kill(self.pid, 9)


class Preforked:
    """Of one program; threads may share it. Children end with it at the latest."""

    def __init__(self, library, program):
        self.program = program
        self.server = subprocess.Popen(
            [program],
            env=os.environ | {"LD_PRELOAD": str(library)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lock = threading.Lock()
        self.asked = []  # Futures of children that have no pid yet; guarded by the lock
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def start(self, command, out, err):
        """A Child that runs `command`, of which the first is the program; writes to the files."""
        program, *arguments = map(str, command)
        assert program == str(self.program)
        child = Future()
        with self.lock:
            self.asked.append(child)
            self.server.stdin.write("\t".join([str(out), str(err), *arguments]) + "\n")
            self.server.stdin.flush()
        return child.result()

    def read(self):
        children = {}
        for line in self.server.stdout:
            what, pid, *code = line.split()
            if what == "started":
                children[pid] = Child(int(pid))
                with self.lock:
                    asked = self.asked.pop(0)
                asked.set_result(children[pid])
            else:
                children.pop(pid).code.set_result(int(code[0]))
        for lost in [*self.asked, *(child.code for child in children.values())]:
            lost.set_exception(RuntimeError(f"{self.program} is not there any more"))

    def close(self):
        self.server.stdin.close()
        self.server.wait()
        self.reader.join()
