#!/usr/bin/env python3
"""A real Prometheus scrapes a real coordinator: what rules and dashboard ask for is there.

monitoring_test.py --bin DIR --assets DIR
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import urllib.parse
import urllib.request

from deployed import (
    DEPLOY,
    cluster,
    dashboard,
    expect,
    load,
    metric_names,
    program,
    rules,
    sft_job,
    wait_until,
)

LONG = 100_000  # steps: never done while the test runs


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Prometheus:
    """The configuration of deploy/, against this test's coordinator, once a second."""

    def __init__(self, folder, target):
        shutil.copytree(DEPLOY / "prometheus", folder)
        text = (folder / "prometheus.yml").read_text()
        expect("127.0.0.1:9464" in text, "prometheus.yml scrapes another address")
        text = text.replace("127.0.0.1:9464", target).replace("_interval: 15s", "_interval: 1s")
        (folder / "prometheus.yml").write_text(text)
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"

    @contextlib.contextmanager
    def running(self):
        with (self.folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={self.folder}/prometheus.yml",
                    f"--storage.tsdb.path={self.folder}/data",
                    f"--web.listen-address={self.address}",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(lambda: process.poll() is not None or self.is_ready(), "Prometheus")
            expect(process.poll() is None, f"Prometheus ended with {process.poll()}")
            yield self
        finally:
            process.terminate()
            process.wait()

    def is_ready(self):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{self.address}/-/ready"):
            return True
        return False

    def get(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}") as response:
            answer = json.load(response)
        expect(answer["status"] == "success", f"{path} {parameters}: {answer}")
        return answer["data"]

    def query(self, expression):
        return self.get("query", query=expression)["result"]


def submit(service, assets, name, **resources):
    job = sft_job(assets, service.directory / name, 2, max_steps=LONG, save_steps=10)
    job |= {"name": name, "resources": resources}
    done = service.call("submit", str(service.write_job(name, job)))
    expect(done.returncode == 0, done.stderr)
    return done.stdout.strip()


def exported(address):
    """Names of the series of a page of /metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics") as response:
        page = response.read().decode()
    return set(re.findall(r"^([a-z_]+)[{ ]", page, re.MULTILINE))


def named_anywhere():
    """metric -> where a rule or the dashboard names it."""
    found = {}
    for path in ("prometheus/alerts.yml", "prometheus/recording.yml"):
        for rule in rules(path):
            for name in metric_names(rule["expr"]):
                found.setdefault(name, f"{path}: {rule.get('alert') or rule['record']}")
    for title, expression in panels():
        for name in metric_names(expression):
            found.setdefault(name, f"the dashboard's {title}")
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            (name,) = re.findall(r"label_values\((\w+)", variable["query"]["query"])
            found.setdefault(name, f"the dashboard's ${variable['name']}")
    return found


def panels():
    """(title, expression) of every target of the dashboard."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], re.sub(r"\$(instance|job)\b", ".*", target["expr"])


def test_every_metric_exists(address):
    recorded = {rule["record"] for rule in rules("prometheus/recording.yml")}
    names = named_anywhere()
    expect(len(names) > 30, f"only {len(names)} metrics were found in rules and dashboard")

    def missing():
        return set(names) - recorded - exported(address) - {"up"}

    with contextlib.suppress(Exception):
        wait_until(lambda: not missing(), "every metric to be exported", 60)
    expect(not missing(), f"not exported: {[(name, names[name]) for name in missing()]}")


def test_every_panel_has_data(prometheus):
    for title, expression in panels():
        wait_until(lambda e=expression: prometheus.query(e), f"{title} to show {expression}")


def test_every_rule_is_evaluated(prometheus):
    def done():
        groups = prometheus.get("rules")["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        expect(not [r for r in found if r["health"] == "err"], f"rules fail: {found}")
        return found if all(rule["health"] == "ok" for rule in found) else None

    count = sum(len(rules(f"prometheus/{name}.yml")) for name in ("alerts", "recording"))
    expect(len(wait_until(done, "rules to be evaluated")) == count, "rules are missing")


def test_layout():
    """Panels have ids of their own and do not cover each other; the data source is provisioned."""
    cells, ids = set(), set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        expect(panel["id"] not in ids, f"two panels have the id {panel['id']}")
        ids.add(panel["id"])
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                expect((x, y) not in cells and x < 24, f"{panel['title']} lies on another panel")
                cells.add((x, y))
    (source,) = load("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    expect(source["type"] == "prometheus" and source["isDefault"], f"data source: {source}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    test_layout()
    with cluster(options.bin) as service, service.up("--cpu-slots", "2"):
        target = f"127.0.0.1:{(service.state_dir / 'http.port').read_text().strip()}"
        prometheus = Prometheus(service.directory / "prometheus", target)
        with prometheus.running():
            wait_until(lambda: prometheus.query("tessera_build_info"), "the first scrape")
            job = submit(service, options.assets, "runs", device_memory="1GiB")
            wait_until(
                lambda: prometheus.query(f'tessera_job_step{{job="{job}"}} > 20'), "20 steps"
            )
            # One that waits, one that is cancelled, a mistake, and a rank that dies.
            submit(service, options.assets, "waits")
            service.call("cancel", submit(service, options.assets, "cancelled"))
            expect(service.call("get", "nobody").returncode == 2, "there is a job nobody")
            test_every_metric_exists(target)
            print("ok: every metric that is named exists", flush=True)
            os.kill(wait_until(lambda: service.rank_pid(1), "a rank"), signal.SIGKILL)
            test_every_panel_has_data(prometheus)
            print("ok: every panel has data", flush=True)
            test_every_rule_is_evaluated(prometheus)
            print("ok: every rule is evaluated", flush=True)


if __name__ == "__main__":
    main()
