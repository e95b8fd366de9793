#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at a report in a real browser, Chromium without a screen, dark and light.

    scripts/check_report.py [BUILD_DIR] [--keep FOLDER] [--page report.html]

Makes a report of a run of 10,000 steps and of a shorter one with BUILD_DIR/bin/apogee (default: build/test), or takes
--page. Checks: the report is made within 2 s and has at most 2 MiB; its HTML is well-formed; the browser logs nothing
on its console and asks for nothing but the page itself; dark and light differ; no text is cut off at a width of 1280 or
400 pixels; the values that the page shows under the pointer are those of the run. --keep leaves the screenshots, to look
at. Exit status 0: all good, 1: not, 77: there is no Chromium, so nothing was checked in it.
"""
import argparse
import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Requests for the browser itself: updates, dictionaries.
BROWSER = re.compile(r"(chrome|devtools)|https?://[a-z0-9.-]*\.(google|googleapis|gvt1)\.com/")
VOID = {"meta", "link", "br", "img"}
# Runs in the page: what is wider than the window, and what the pointer shows in the middle of the first chart.
PROBE = """
<script>
addEventListener('load', () => {
  const wide = document.documentElement.scrollWidth > window.innerWidth;
  const chart = document.querySelector('svg.chart'), box = chart.getBoundingClientRect();
  chart.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width / 2, clientY: box.top + 9}));
  const tip = document.getElementById('tip');
  document.body.append('PRO' + 'BE ' + JSON.stringify({wide: wide, tip: tip.innerText, shown: tip.style.display}) + ' END');
});
</script>
"""


class WellFormed(html.parser.HTMLParser):
    """Every tag is closed, in order, and no identifier is given twice."""

    def __init__(self):
        super().__init__()
        self.open, self.problems, self.ids = [], [], set()

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.handle_startendtag(tag, attributes)

    def handle_startendtag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" and value in self.ids:
                self.problems.append(f"the id {value} is given twice")
            elif name == "id":
                self.ids.add(value)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()} closes nothing")


def browse(chromium, work, page, *flags):
    """Returns what the browser printed, its log, and the requests of its network log."""
    netlog = work / "net.json"
    run = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
         f"--user-data-dir={work / 'profile'}", f"--log-net-log={netlog}", "--net-log-capture-mode=Everything",
         "--disable-background-networking", "--disable-component-update", "--no-first-run", *flags, page.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    requests = set(re.findall(r'"url":"([a-z]+://[^"]*)"', netlog.read_text(errors="replace")))
    return run.stdout, run.stderr, requests


def check_page(chromium, work, page, keep):
    problems = []
    shots = {}
    for scheme, value in (("light", 1), ("dark", 0)):
        for width in (1280, 400):
            shot = work / f"{scheme}_{width}.png"
            _, log, requests = browse(
                chromium, work, page, f"--blink-settings=preferredColorScheme={value}",
                f"--window-size={width},3000", f"--screenshot={shot}",
            )  # fmt: skip
            shots[scheme, width] = shot.read_bytes() if shot.exists() else b""
            if not shots[scheme, width]:
                problems.append(f"{scheme}, {width}: no screenshot")
            console = [line for line in log.splitlines() if "CONSOLE" in line]
            problems += [f"{scheme}, {width}: {line}" for line in console]
            # The browser's own services are not the page's.
            problems += [
                f"{scheme}, {width}: a request to {url}" for url in requests
                if url != page.as_uri() and not BROWSER.match(url)
            ]  # fmt: skip
            if keep:
                keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(shot, keep)
    if shots["light", 1280] == shots["dark", 1280]:
        problems.append("dark and light look the same")
    return problems


def check_probe(chromium, work, page, losses):
    """The page with a script of ours. The pointer is in the middle of the plot, or nearly so."""
    problems = []
    probed = work / "probed.html"
    probed.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    for width in (1280, 400):
        dom, _, _ = browse(chromium, work, probed, f"--window-size={width},3000", "--dump-dom")
        found = re.search(r"PROBE (.*) END", dom)
        if not found:
            problems.append(f"{width}: the page's script did not run")
            continue
        probe = json.loads(html.unescape(found.group(1)))
        if probe["wide"]:
            problems.append(f"{width}: the page is wider than the window")
        value = re.search(r": ([0-9.]+) at step ([0-9]+)", probe["tip"])
        if not value or probe["shown"] != "block":
            problems.append(f"{width}: the pointer shows {probe}")
        elif losses and abs(float(value.group(1)) - losses[int(value.group(2))]) > 1e-3:
            problems.append(f"{width}: the pointer shows {value.group(0)}, the run has {losses[int(value.group(2))]}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=ROOT / "build/test")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--page", type=pathlib.Path)
    flags = parser.parse_args()
    problems, losses = [], {}
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        page = flags.page.resolve() if flags.page else work / "report.html"
        if not flags.page:
            make = [sys.executable, str(ROOT / "tests/support/make_run.py")]
            subprocess.run([*make, work / "long", "--plan"], check=True)
            subprocess.run([*make, work / "short", "--steps", "700", "--seed", "2", "--note", "<script>x</script>"],
                           check=True)  # fmt: skip
            command = [flags.build / "bin/apogee", "report"]
            begin = time.monotonic()
            subprocess.run([*command, work / "long", "--out", work / "one.html"], check=True, stdout=subprocess.DEVNULL)
            seconds, size = time.monotonic() - begin, (work / "one.html").stat().st_size
            print(f"10,000 steps: {seconds:.2f} s, {size:,} bytes")
            if seconds > 2 or size > 2 << 20:
                problems.append("a report of 10,000 steps takes more than 2 s or 2 MiB")
            subprocess.run([*command, work / "long", work / "short", "--out", page], check=True,
                           stdout=subprocess.DEVNULL)  # fmt: skip
            rows = [json.loads(line) for line in (work / "long/metrics.jsonl").open()]
            losses = {row["step"]: row["loss"] for row in rows}
        form = WellFormed()
        form.feed(page.read_text())
        problems += form.problems + [f"<{tag}> has no end" for tag in form.open if tag not in VOID]
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if chromium:
            problems += check_page(chromium, work, page, flags.keep) + check_probe(chromium, work, page, losses)
    for problem in problems:
        print("check_report: " + problem)
    if problems:
        return 1
    if not chromium:
        print("check_report: skipped in a browser: there is no chromium (apt-get install chromium)")
        return 77
    print("check_report: good in " + chromium)
    return 0


if __name__ == "__main__":
    sys.exit(main())
