#!/usr/bin/env python3
"""promtool on the configuration, the rules and the rules' own tests, which must miss no alert."""

from deployed import DEPLOY, check, expect, load, program, rules

FOLDER = DEPLOY / "prometheus"


def test_every_alert_is_seen_quiet_and_firing():
    quiet, firing = set(), set()
    for case in load("prometheus/alerts_test.yml")["tests"]:
        for row in case["alert_rule_test"]:
            (firing if row["exp_alerts"] else quiet).add(row["alertname"])
    alerts = {rule["alert"] for rule in rules("prometheus/alerts.yml")}
    expect(alerts == firing, f"never seen firing: {alerts - firing}; unknown: {firing - alerts}")
    expect(alerts == quiet, f"never seen quiet: {alerts - quiet}; unknown: {quiet - alerts}")


def test_every_alert_says_what_to_do():
    for rule in rules("prometheus/alerts.yml"):
        severity = rule["labels"]["severity"]
        expect(severity in ("critical", "warning", "info"), f"{rule['alert']}: {severity}")
        expect(set(rule["annotations"]) == {"summary", "description"}, rule["alert"])


def main():
    promtool = program("promtool")
    check(promtool, "check", "config", FOLDER / "prometheus.yml")
    check(promtool, "test", "rules", FOLDER / "alerts_test.yml")
    test_every_alert_is_seen_quiet_and_firing()
    test_every_alert_says_what_to_do()
    print("ok: alerts")


if __name__ == "__main__":
    main()
