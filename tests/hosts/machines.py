"""A coordinator and agents on hosts of their own, and a job of theirs under watch."""

import dataclasses
import threading

from cluster import DEADLINE_SECONDS, Follower, command_line, expect, wait_until
from fabric import Host, make_hosts
from jobs import sft_job, sha256
from outcome import check_events, check_output
from remote import Coordinator

PORT = 7443
SAMPLE_SECONDS = 0.1


class Ranks(threading.Thread):
    """Looks which attempts of a job have processes; two at a time must never be."""

    def __init__(self, service):
        super().__init__(daemon=True)
        self._service = service
        self._over = threading.Event()
        self.overlaps = []

    def alive(self):
        """Numbers of attempts that have a rank's process."""
        attempts = set()
        for pid in self._service.pids("tessera-trainer"):
            parts = "\0".join(command_line(pid)).split("/runs/")
            if len(parts) > 1:  # else it checks a job
                attempts.add(int(parts[1].split("/")[1]))
        return attempts

    def run(self):
        while not self._over.wait(SAMPLE_SECONDS):
            alive = self.alive()
            if len(alive) > 1:
                self.overlaps.append(sorted(alive))

    def end(self):
        self._over.set()
        self.join()


class Site:
    """Hosts `c` for the coordinator and n1, n2 ... for agents with one device each. `flags`: of
    tesserad; `rate`: of each host's link, towards it; `delay_ms`: of agents' links, each way."""

    def __init__(self, service, fabric, num_nodes, flags, rate, delay_ms):
        self.service = service
        self.fabric = fabric
        self._rate = rate
        self.hosts = make_hosts(fabric, ["c", *(f"n{i + 1}" for i in range(num_nodes))], delay_ms)
        coordinator = self.hosts["c"]
        listen = f"{coordinator.address}:{PORT}"
        self.coordinator = Coordinator(
            service, "state", *flags, listen=listen, enter=coordinator.enter
        )
        for name in list(self.hosts)[1:]:
            token = self.coordinator.token(name, "--role", "agent", "--node", name)
            self.start_agent(name, "--enrol-token-file", str(token))
        self.wait_for_nodes("READY", *list(self.hosts)[1:])
        fabric.slow(rate)

    def start_agent(self, name, *flags):
        log = self.service.directory / f"agent-{name}.log"
        self.hosts[name].start(self.coordinator.agent_command(name, *flags), log)

    def boot(self, name, number=None, delay_ms=0):
        """A new host, or one that is there again, under its address."""
        number = number or self.hosts[name].number
        self.hosts[name] = Host(self.fabric, name, number, delay_ms)
        self.fabric.slow(self._rate)
        return self.hosts[name]

    def states(self):
        return {node["name"]: node["state"] for node in self.service.query("nodes")}

    def wait_for_nodes(self, state, *names):
        def there():
            done = self.service.call("nodes")
            return done.returncode == 0 and all(self.states().get(name) == state for name in names)

        wait_until(there, f"{', '.join(names)} to be {state}")

    def log_says(self, name, text):
        log = self.service.directory / f"agent-{name}.log"
        return text in log.read_text(errors="replace")


@dataclasses.dataclass(frozen=True)
class Size:
    """Of a job."""

    num_ranks: int
    num_steps: int = 60
    save_steps: int = 10


class Run:
    """A job that is followed from a thread, to its end."""

    def __init__(self, options, service, size, flags=(), **resources):
        """`size`: a Size. `flags`: of the CLI; without any it starts a service of its own, on this
        machine."""
        self._options, self._service, self._size = options, service, size
        self._resources = {"cpu_threads": 1} | resources
        self._output = service.directory / "output"
        self.ranks = Ranks(service)
        self.ranks.start()
        path = self._write("job", self._output)
        self._follower = Follower(service, *flags, "run", str(path))
        self._failure = None
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _write(self, name, output):
        output.mkdir()
        size = self._size
        steps = {"max_steps": size.num_steps, "save_steps": size.save_steps}
        job = sft_job(self._options.assets, output, size.num_ranks, **steps)
        return self._service.write_job(name, job | {"name": name, "resources": self._resources})

    def submit_another(self, name):
        """Its id. It is like this one."""
        path = self._write(name, self._service.directory / name)
        done = self._service.call("submit", str(path))
        expect(done.returncode == 0, done.stderr)
        return done.stdout.strip()

    def _follow(self):
        try:
            self._follower.follow(lambda event: None, seconds=3 * DEADLINE_SECONDS)
        except Exception as failure:
            self._failure = failure

    def seen(self, kind):
        return [event for event in list(self._follower.events) if kind in event]

    def wait_for_step(self, step, attempt=1):
        self._wait(
            lambda: any(
                e["attempt"] == attempt and e["step"]["step"] >= step for e in self.seen("step")
            ),
            f"step {step} of attempt {attempt}",
        )

    def wait_for_state(self, state, attempt=1):
        self._wait(
            lambda: any(
                e.get("attempt", 0) == attempt and e["state"]["state"] == state
                for e in self.seen("state")
            ),
            f"attempt {attempt} to be {state}",
        )

    def _wait(self, condition, what):
        def there():
            expect(condition() or self._thread.is_alive(), f"the job ended before {what}")
            return condition()

        wait_until(there, what)

    def is_over(self):
        return not self._thread.is_alive()

    def end(self, baseline=None):
        """Waits for the end, which must be that of an undisturbed run; (losses, hash of the
        weights, number of attempts)."""
        self._thread.join(3 * DEADLINE_SECONDS)
        code, errors = self._follower.end()
        self.ranks.end()
        events = self._follower.events
        last = events[-1] if events else {}
        expect(self._failure is None, f"following the job: {self._failure}")
        state = last.get("state", {}).get("state")
        expect(code == 0 and state == "SUCCEEDED", f"exit code {code}, {last}: {errors}")
        expect(not self.ranks.overlaps, f"attempts that ran at a time: {self.ranks.overlaps}")
        losses = check_events(events, self._size.num_steps, baseline and baseline[0])
        check_output(self._output, self._size.num_steps, self._size.save_steps)
        digest = sha256(self._output / "final" / "model.safetensors")
        expect(not baseline or digest == baseline[1], "the final weights differ")
        self._service.expect_gone("tessera-trainer")
        return losses, digest, last["attempt"]
