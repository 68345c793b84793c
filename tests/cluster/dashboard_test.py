#!/usr/bin/env python3
"""The dashboard in a browser, on real jobs of a real service.

dashboard_test.py --bin DIR --assets DIR [--shots DIR]
"""

import argparse
import contextlib
import os
import pathlib
import re
import shutil
import signal

from cluster import cluster, expect, run_job, slowed, wait_until
from jobs import sft_job
from playwright.sync_api import expect as shown
from playwright.sync_api import sync_playwright
from submitted import submit

LONG = 100_000  # steps: never done while a test runs
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZES = {"laptop": (1280, 800), "phone": (390, 844)}
PATIENCE_MS = 60_000
TABS = ["Curves", "Memory", "Time", "Ranks", "Events", "Plan", "Data", "Log", "Job file"]


class Visitor:
    """A page that notes what a browser would complain about, and what it asks others for."""

    def __init__(self, browser, base, size, theme="light"):
        width, height = SIZES[size]
        self.base = base
        self.complaints = []
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._heard)
        self.page.on("request", self._asked)
        self.may_be_refused = False

    def _heard(self, message):
        if message.type == "error" and not self.may_be_refused:
            self.complaints.append(message.text)

    def _asked(self, request):
        if not request.url.startswith(self.base):
            self.complaints.append(f"asks {request.url}")

    def open(self, path):
        self.page.goto(self.base + path)

    def expect_fits(self, what):
        """Nothing is wider than the window."""
        wide = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        expect(wide <= 0, f"{what} is {wide} px wider than the window")

    def close(self):
        self.context.close()
        expect(not self.complaints, f"the browser complains: {self.complaints}")


@contextlib.contextmanager
def visit(browser, base, size, theme="light"):
    visitor = Visitor(browser, base, size, theme)
    yield visitor
    visitor.close()


def see(locator):
    shown(locator).to_be_visible(timeout=PATIENCE_MS)


def step_shown(page):
    return int(page.locator(".advance b").inner_text())


def has_ink(page):
    """Whether the first chart has pixels in the colour of its first curve."""
    return page.locator(".plot canvas").first.evaluate(
        """canvas => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          let coloured = 0;
          for (let i = 0; i < data.length; i += 4) {
            const [r, g, b, a] = data.slice(i, i + 4);
            if (a > 0 && Math.max(r, g, b) - Math.min(r, g, b) > 60) coloured += 1;
          }
          return coloured > 50;
        }"""
    )


def check_empty(browser, base):
    with visit(browser, base, "laptop") as visitor:
        visitor.open("/")
        see(visitor.page.get_by_text("There are no jobs yet."))
        visitor.open("/compare")
        see(visitor.page.get_by_text("Choose jobs to compare."))
        visitor.may_be_refused = True
        visitor.open("/jobs/nobody")
        see(visitor.page.get_by_text("There is no job nobody."))


def check_live_job(browser, base, job, shots):
    """The page of a job that runs moves on by itself, in each of its parts."""
    with visit(browser, base, "laptop") as visitor:
        page = visitor.page
        visitor.open(f"/jobs/{job}")
        see(page.get_by_role("heading", name=job))
        see(page.locator(".feed.live"))
        see(page.get_by_role("img", name=re.compile("^Loss")))
        first = wait_until(
            lambda: page.locator(".advance b").count() and step_shown(page), "a step"
        )
        wait_until(lambda: step_shown(page) > first + 5, "the page to go on by itself")
        wait_until(lambda: has_ink(page), "a curve to be drawn")
        for name in TABS:
            page.get_by_role("tab", name=name).click()
            see(page.get_by_role("tabpanel", name=name))
            visitor.expect_fits(name)
            if shots:
                page.screenshot(path=shots / f"{name}.png", full_page=True)
        # By keyboard alone.
        page.get_by_role("tab", name="Job file").focus()
        page.keyboard.press("ArrowRight")
        see(page.get_by_role("tabpanel", name="Curves"))
        plot = page.locator(".plot").first
        plot.focus()
        page.keyboard.press("ArrowLeft")
        shown(page.locator(".at").first).to_have_text(re.compile(r"^step \d+$"))


def check_parts(browser, base, job):
    with visit(browser, base, "laptop", "dark") as visitor:
        page = visitor.page
        visitor.open(f"/jobs/{job}#memory")
        for owner in ("parameters", "optimizer"):
            see(page.locator(".legend").get_by_text(owner))
        see(page.get_by_text("rehearsed peak"))
        page.get_by_role("combobox", name="Rank").select_option("1")
        see(page.get_by_text("Tensors on the device, rank 1"))
        page.get_by_role("tab", name="Time").click()
        see(page.get_by_role("row", name=re.compile("^backward")))
        page.get_by_role("tab", name="Ranks").click()
        shown(page.locator("tbody tr")).to_have_count(2)
        page.get_by_role("tab", name="Plan").click()
        see(page.get_by_text("Peak of a rank"))
        page.get_by_role("tab", name="Data").click()
        page.get_by_role("button", name="Read the lengths").click()
        see(page.get_by_role("list", name="Documents by length"))
        page.get_by_role("tab", name="Log").click()
        see(page.get_by_text("checked by an agent"))
        page.get_by_role("tab", name="Job file").click()
        see(page.get_by_text(f"max_steps: {LONG}"))


def check_ranks(browser, service, base, job, shots):
    """The times of the ranks, which one is slow, what they exchange, and traces of their steps."""
    with visit(browser, base, "laptop") as visitor:
        page = visitor.page
        visitor.open(f"/jobs/{job}#ranks")
        see(page.get_by_role("img", name=re.compile("^Busy in a step.*slowest: last")))
        shown(page.locator(".badge", has_text="straggler")).to_have_count(0)
        with slowed(service.rank_pid(1)):
            see(page.locator(".title .badge", has_text="straggler: rank 1"))
            see(page.get_by_text(re.compile("^Rank 1 on .* is a straggler: busy for")))
        expect(service.call("collectives", job).returncode == 0, "the ranks do not answer")
        table = page.get_by_role("region", name="Collectives")
        see(table.get_by_role("row", name=re.compile("^1 .* waits ")))
        table.get_by_text("The last exchanges of rank 0").click()
        see(table.get_by_role("rowheader", name=re.compile("of dp_shard$")).first)
        visitor.expect_fits("the table of exchanges")
        if shots:
            page.screenshot(path=shots / "hang.png", full_page=True)
        done = service.call("trace", job, "--ranks", "1")
        expect(done.returncode == 0, done.stderr)
        page.get_by_role("tab", name="Events").click()
        see(page.get_by_role("cell", name=done.stdout.strip()))


def check_phone(browser, base, job, shots):
    with visit(browser, base, "phone", "dark") as visitor:
        page = visitor.page
        visitor.open("/")
        see(page.get_by_role("link", name=job))
        visitor.expect_fits("the list of jobs")
        if shots:
            page.screenshot(path=shots / "phone.png", full_page=True)
        page.get_by_role("link", name=job).click()
        see(page.get_by_role("img", name=re.compile("^Loss")))
        for name in TABS:
            page.get_by_role("tab", name=name).click()
            see(page.get_by_role("tabpanel", name=name))
            visitor.expect_fits(f"{name} on a phone")
        page.get_by_role("link", name="Nodes").click()
        see(page.get_by_role("link", name=job).first)
        visitor.expect_fits("the nodes")
        before = page.evaluate("document.documentElement.dataset.theme")
        page.get_by_role("button", name="Colours").click()
        after = page.evaluate("document.documentElement.dataset.theme")
        expect((before, after) == ("dark", "light"), f"{before} became {after}")


def check_restart(browser, service, base, job):
    """kill -9 of the coordinator: the page says so, and goes on from where it was."""
    with visit(browser, base, "laptop") as visitor:
        page = visitor.page
        visitor.may_be_refused = True
        asked = []
        page.on("request", lambda r: asked.append(r.url) if "/events?" in r.url else None)
        visitor.open(f"/jobs/{job}")
        see(page.locator(".feed.live"))
        (coordinator,) = service.pids("tesserad")
        os.kill(coordinator, signal.SIGKILL)
        see(page.get_by_text("Connection lost."))
        step = step_shown(page)
        see(page.locator(".feed.live"))
        wait_until(lambda: step_shown(page) > step, "the page to go on after the restart")
        first, again = (int(re.search(r"after=(\d+)", url)[1]) for url in (asked[0], asked[-1]))
        expect(again > first, f"asked for events after {first}, and then after {again}")


def check_ended(browser, service, base, jobs, shots):
    """A job that failed says why and what to do; two that succeeded are laid over each other."""
    good, other, failed = jobs
    with visit(browser, base, "laptop") as visitor:
        page = visitor.page
        visitor.open(f"/jobs/{failed}")
        (job,) = service.query("get", failed)
        see(page.get_by_text(job["failure"]["message"].splitlines()[0]).first)
        see(page.get_by_text("What to do"))
        if shots:
            page.screenshot(path=shots / "failed.png", full_page=True)
        visitor.open("/?show=failed")
        see(page.get_by_role("link", name=failed))
        shown(page.get_by_role("link", name=good)).to_have_count(0)
        page.get_by_role("button", name="All").click()
        for name in (good, other):
            page.get_by_role("checkbox", name=f"Compare {name}").check()
        if shots:
            page.screenshot(path=shots / "jobs.png", full_page=True)
        page.get_by_role("button", name="Compare 2").click()
        chart = page.get_by_role("img", name=re.compile(rf"^Loss\. .*{good}.*{other}"))
        see(chart)
        if shots:
            page.screenshot(path=shots / "compare.png", full_page=True)
        page.get_by_role("button", name=f"Leave out {other}").click()
        shown(page.get_by_role("link", name=other)).to_have_count(0)


def run(options, browser, service):
    output = service.directory / "output"

    def job(name, ranks=1, **training):
        return sft_job(options.assets, output / name, ranks, **training)

    with service.up("--cpu-slots", "4"):
        port = (service.state_dir / "http.port").read_text().strip()
        base = f"http://127.0.0.1:{port}"
        check_empty(browser, base)
        ended = []
        for name, training in {
            "good": {"max_steps": 20},
            "other": {"max_steps": 20, "learning_rate": 1e-2},
            "diverges": {"max_steps": 20, "learning_rate": 1e30},
        }.items():
            _, events, errors = run_job(
                service, "run", str(service.write_job(name, job(name, **training)))
            )
            expect(events, errors)
            ended.append(service.query("list")[0]["id"])
        check_ended(browser, service, base, ended, options.shots)
        long = submit(service, "long", job("long", 2, max_steps=LONG))
        check_live_job(browser, base, long, options.shots)
        check_parts(browser, base, long)
        check_ranks(browser, service, base, long, options.shots)
        check_phone(browser, base, long, options.shots)
        check_restart(browser, service, base, long)
        expect(service.call("cancel", long).returncode == 0, "it cannot be cancelled")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--shots", type=pathlib.Path, help="keep pictures of the pages there")
    options = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        print("SKIPPED, NOT TESTED: there is no browser to open the dashboard with", flush=True)
        return
    with cluster(options.bin) as service, sync_playwright() as playwright:
        # The sandbox of Chromium does not work for root in a container.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        run(options, browser, service)
        browser.close()


if __name__ == "__main__":
    main()
