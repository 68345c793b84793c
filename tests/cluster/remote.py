"""A coordinator that machines join over TLS."""

import contextlib
import signal
import subprocess

from cluster import DEADLINE_SECONDS, expect, wait_until


class Coordinator:
    """tesserad with a TLS listener, and agents of it: here, on loopback, or on other machines."""

    def __init__(self, service, name="state", *flags, listen="127.0.0.1:0", http="", enter=()):
        self.service = service
        self.state = service.directory / name
        self.log = service.directory / f"{name}.log"
        self.ca = self.state / "tls" / "ca.pem"
        self._flags = ("--listen", listen, "--http", http, *flags)
        self._host = listen.rpartition(":")[0]
        self.start(enter)

    def start(self, enter=()):
        """Starts it; `enter`: words before its command, which bring it to its machine."""
        program = str(self.service.binaries / "tesserad")
        port = self.state / "grpc.port"
        port.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*enter, program, "--state-dir", str(self.state), *self._flags],
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        wait_until(port.exists, "tesserad to listen")
        self.address = f"{self._host}:{port.read_text().strip()}"

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        expect(self.process.wait(DEADLINE_SECONDS) == 0, f"tesserad ended: {self.log.read_text()}")

    def token(self, name, *flags):
        """A file with a new token."""
        done = subprocess.run(
            [
                str(self.service.binaries / "tessera"),
                *("--state-dir", str(self.state), "token", "create", *flags),
            ],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        expect(done.returncode == 0, done.stderr)
        path = self.service.directory / f"{name}.token"
        path.write_text(done.stdout)
        return path

    def remote(self, token, *arguments):
        """A command of the CLI as from another machine."""
        return self.service.call(*self.remote_flags(token), *arguments)

    def remote_flags(self, token):
        """Of the CLI, as on another machine."""
        return ("--address", self.address, "--ca", str(self.ca), "--token-file", str(token))

    def agent_command(self, node, *flags, ca=None):
        directory = self.service.directory / f"agent-{node}"
        return [
            str(self.service.binaries / "tessera-agent"),
            *("--coordinator", self.address, "--node", node, "--state-dir", str(directory)),
            *("--ca", str(ca or self.ca), "--cpu-slots", "1", *flags),
        ]

    @contextlib.contextmanager
    def agent(self, node, *flags):
        log_path = self.service.directory / f"agent-{node}.log"
        begin = len(log_path.read_text()) if log_path.exists() else 0
        with log_path.open("ab") as log:
            process = subprocess.Popen(self.agent_command(node, *flags), stderr=log)
        try:
            wait_until(
                lambda: f"connected to {self.address} as {node}" in log_path.read_text()[begin:],
                f"agent {node} to be connected; it is {process.poll()}, {log_path.read_text()}",
            )
            yield process
            process.send_signal(signal.SIGTERM)
            expect(process.wait(DEADLINE_SECONDS) == 0, log_path.read_text())
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def expect_refused(self, what, text, node, *flags, ca=None):
        """An agent that ends with one error, which says `text`."""
        done = subprocess.run(
            self.agent_command(node, *flags, ca=ca),
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        errors = [line for line in done.stderr.splitlines() if " error agent: " in line]
        expect(done.returncode == 1, f"{what}: exit code {done.returncode}: {done.stderr}")
        expect(len(errors) == 1 and text in errors[0], f"{what}: {done.stderr}")
        print(f"{what}: {errors[0].split(' error agent: ')[1]}", flush=True)
