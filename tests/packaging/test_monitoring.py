"""The dashboard and the alerts: each metric and label in them is one that the code has; Prometheus' own tool agrees."""

import asyncio
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

import agent.metrics
import receiver.metrics
from agent.faults import Ledger
from agent.identity import Certificate
from agent.session import messages as m
from agent.session.stream import LinkState
from receiver.apply.hygiene import Swept
from tests.agent.test_metrics import GPU, Parts, seen
from tests.fake_daemon import until
from tests.receiver.builders import host
from tests.receiver.conftest import database, server
from tests.receiver.tls import secure
from tests.scripts import load

__all__ = ["database", "server"]  # fixtures

FOLDER = Path(__file__).resolve().parents[2] / "packaging/monitoring"
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
PROMETHEUS = {"up", "ALERTS"}  # metrics of its own
OWN_LABELS = {"instance", "job", "le"}
WORDS = {
    "sum",
    "min",
    "max",
    "count",
    "rate",
    "increase",
    "changes",
    "topk",
    "bottomk",
    "time",
    "absent",
    "min_over_time",
    "histogram_quantile",
}

promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: package prometheus)")


def of_bcd() -> list[Metric]:
    """All that bcd tells, with something of everything."""
    ledger = seen(20034, "", 2, "SXid")(seen(79, GPU, 1)(Ledger("boot")))
    parts = Parts(ledger=ledger, log=m.KernelLog(True, True, 0, 0, 0), state=LinkState("connected", 1.0, "unix:/s", 7))
    parts.tally.last_at = 1.0
    parts.joined = Certificate("r:1", "", "", "", 1.0, 2.0)
    return asyncio.run(agent.metrics._read(parts.sources))


def of_receiver(database: str, secret: Path) -> tuple[list[Metric], bytes]:
    """All that a receiver tells, its process included, and the same as it is scraped."""
    secret.write_text("an endpoint's secret, 32 bytes ..")

    async def main() -> tuple[list[Metric], bytes]:
        settings: Any = {"webhook_url": "http://127.0.0.1:9/x", "webhook_secret_file": str(secret)}
        async with secure(database, **settings) as served:
            daemon = served.joined_daemon(await served.join())
            await daemon.connect()
            await daemon.offer(host())
            served.token = served.token_of("default")
            await served.api("nodes.list")
            await until("the webhook", lambda: served.rows("SELECT count(*) FROM webhooks") == [(1,)])
            served.receiver.jobs.measures.worked("hygiene", "done", 0.1, Swept(raised=Counter({"NodeSilent": 1})))
            collectors = receiver.metrics.of_receiver(served.receiver.measured())
            return await asyncio.to_thread(lambda: (list(families(collectors)), scraped(collectors)))

    return asyncio.run(main())


def families(collectors: Iterable[Collector]) -> Iterator[Metric]:
    for collector in collectors:
        yield from collector.collect()


def scraped(collectors: Iterable[Collector]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry)


def names(found: Iterable[Metric]) -> set[str]:
    return {family.name + suffix for family in found for suffix in SUFFIXES.get(family.type, ("",))}


def labels(found: Iterable[Metric]) -> set[str]:
    """Of families without a sample too, where they are declared."""
    return {
        label for one in found for label in (*getattr(one, "_labelnames", ()), *(key for s in one.samples for key in s.labels))
    }


def queries() -> list[str]:
    """Every PromQL expression of the dashboard and of the alerts."""
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    alerts = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])] + [rule["expr"] for rule in alerts]


def used(query: str) -> tuple[set[str], set[str]]:
    """The metrics and the labels that a query names.

    >>> used('sum by (a) (rate(bc_x_total{b=~"c"}[5m])) > 2')
    ({'bc_x_total'}, {'a', 'b'})
    """
    bare = re.sub(r'"[^"]*"', '""', query)
    grouped = {word for inside in re.findall(r"\bby \(([^)]*)\)", bare) for word in re.findall(r"\w+", inside)}
    matched = {word for inside in re.findall(r"\{([^}]*)\}", bare) for word in re.findall(r"(\w+)\s*[=!]", inside)}
    rest = re.sub(r"\bby \([^)]*\)|\{[^}]*\}|\[[^\]]*\]|\boffset \w+|\b[\d.]+\w*\b", " ", bare)
    return set(re.findall(r"[a-z_]\w*", rest)) - WORDS, grouped | matched


def test_every_metric_and_label_is_one_that_the_code_has(database: str, tmp_path: Path) -> None:
    found = [*of_bcd(), *of_receiver(database, tmp_path / "secret")[0]]
    known, known_labels = names(found) | PROMETHEUS, labels(found) | OWN_LABELS
    everything = [used(query) for query in queries()]
    assert sorted({name for metrics, _ in everything for name in metrics} - known) == []
    assert sorted({label for _, of in everything for label in of} - known_labels) == []
    assert len(everything) > 60


def test_every_metric_of_ours_is_on_the_dashboard(database: str, tmp_path: Path) -> None:
    ours = {name for name in names([*of_bcd(), *of_receiver(database, tmp_path / "secret")[0]]) if name.startswith("bc")}
    shown = {name for query in queries() for name in used(query)[0]}
    hidden = {name for name in ours - shown if not name.endswith(("_sum", "_count", "_created"))}
    assert hidden == {"bcd_collection_last_timestamp_seconds", "bcd_session_since_timestamp_seconds", "bcd_session_epoch",
                      "bcd_section_bytes_sent_total", "bcd_sxids_total", "bc_singleton_seconds_bucket"}  # fmt: skip


def test_every_metric_that_the_pages_name_is_one_that_the_code_has(database: str, tmp_path: Path) -> None:
    known = names([*of_bcd(), *of_receiver(database, tmp_path / "secret")[0]])
    root = FOLDER.parents[1]
    pages = [*root.glob("*.md"), *root.glob("docs/*.md"), FOLDER / "alerts.yml"]
    named = {word for page in pages for word in re.findall(r"\bbcd?_[a-z_]+_(?:total|seconds)\b", page.read_text())}
    assert sorted(named - known) == []
    assert "bc_limit_exceeded_total" in named


def test_the_dashboard_is_what_its_table_says() -> None:
    assert (FOLDER / "dashboard.json").read_text() == load("packaging/monitoring/dashboard.py").text(), (
        "run: python packaging/monitoring/dashboard.py"
    )


def test_panels_have_their_own_place_and_number() -> None:
    panels: list[dict[str, Any]] = load("packaging/monitoring/dashboard.py").dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(0 <= x < 24 for x, _ in cells)


def test_every_alert_has_a_test_and_says_what_to_do() -> None:
    rules = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    tested = {one["name"] for one in yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]}
    assert [rule["alert"] for rule in rules if rule["alert"] not in tested] == []
    assert all(rule["annotations"].keys() == {"summary", "description"} for rule in rules)
    assert {rule["labels"]["severity"] for rule in rules} == {"page", "ticket", "info"}


@promtool
@pytest.mark.parametrize(
    "command", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml"), ("check", "config", "prometheus.yml")]
)
def test_promtool_takes_the_files(command: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *command], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_promtool_takes_every_query_of_the_dashboard(tmp_path: Path) -> None:
    expressions = [query.replace("$__rate_interval", "5m") for query in queries()]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(expressions)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_promtool_finds_nothing_to_say_of_our_metrics(database: str, tmp_path: Path) -> None:
    class Told(Collector):
        def collect(self) -> Iterable[Metric]:
            return of_bcd()

    for text in (scraped([Told()]), of_receiver(database, tmp_path / "secret")[1]):
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, b"")
