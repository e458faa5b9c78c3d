"""Writes the Grafana dashboard from the table below: `python packaging/monitoring/dashboard.py` (dashboard.json beside it).

One more panel is one more row. Import dashboard.json in Grafana (10 or newer) and choose the Prometheus that scrapes bcd and
bc-receiver. tests/packaging/test_monitoring.py: every metric here is one that the code has, and the file is what this writes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("dashboard.json")
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WIDTH, _HEIGHT = 8, 7  # of a panel: 24 columns are a row


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph (or one number) of one or more queries: (PromQL, legend)."""

    title: str
    tells: str
    unit: str
    queries: Sequence[tuple[str, str]]
    kind: str = "timeseries"


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[$__rate_interval]))"


def _increase(metric: str, by: str) -> str:
    return f"sum by ({by}) (increase({metric}[$__rate_interval]))"


def _average(total: str, count: str, by: str) -> str:
    return f"{_rate(total, by)} / {_rate(count, by)}"


_Q = "histogram_quantile({}, sum by (le, {}) (rate({}_bucket[$__rate_interval])))"
ROWS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "Fleet",
        (
            Panel("Sessions", "Nodes that report now.", "short", [("sum(bc_sessions)", "")], "stat"),
            Panel("Open GPU faults", "One a GPU and code.", "short", [("sum(bcd_open_faults)", "")], "stat"),
            Panel(
                "Repairs paused",
                "Pools that the breaker stopped.",
                "short",
                [('max(bc_pool_stops{kind="remediation"})', "")],
                "stat",
            ),
            Panel("Sessions by receiver", "Streams that are open.", "short", [("bc_sessions", "{{instance}}")]),
            Panel(
                "Sessions ended",
                "By reason, a second.",
                "ops",
                [(_rate("bc_sessions_ended_total", "reason"), "{{reason}}")],
            ),
            Panel(
                "Joins and renewals",
                "By how they ended, a second.",
                "ops",
                [(_rate("bc_joins_total", "what, status"), "{{what}} {{status}}")],
            ),
        ),
    ),
    (
        "GPU faults",
        (
            Panel("XIDs", "Records in the kernel logs, by code.", "short", [(_increase("bcd_xids_total", "xid"), "{{xid}}")]),
            Panel(
                "Open faults by what they ask for", "Of all GPUs.", "short", [("sum by (action) (bcd_open_faults)", "{{action}}")]
            ),
            Panel(
                "Repairs",
                "Runs that have not ended; each receiver sees the same.",
                "short",
                [("max by (kind, state) (bc_repairs_open)", "{{kind}} {{state}}")],
            ),
        ),
    ),
    (
        "Receiver",
        (
            Panel(
                "Inventories by result",
                "Offers a second.",
                "ops",
                [(_rate("bc_inventory_results_total", "status"), "{{status}}")],
            ),
            Panel(
                "Jobs of streams, 99 %",
                "One of a hundred takes longer.",
                "s",
                [(_Q.format(0.99, "kind", "bc_job_seconds"), "{{kind}}")],
            ),
            Panel(
                "API, 99 %",
                "One call of a hundred takes longer.",
                "s",
                [(_Q.format(0.99, "method", "bc_api_seconds"), "{{method}}")],
            ),
            Panel(
                "Open work",
                "Transactions, calls, handshakes.",
                "short",
                [
                    ("bc_jobs_open", "{{instance}} jobs"),
                    ("bc_api_calls_open", "{{instance}} calls"),
                    ("bc_handshakes", "{{instance}} handshakes"),
                    ("bc_seen_unwritten", "{{instance}} not yet noted as seen"),
                ],
            ),
            Panel(
                "Connections to the database",
                "Used, of those that there may be.",
                "percentunit",
                [("bc_pool_connections_used / bc_pool_connections_max", "{{instance}} {{pool}}")],
            ),
            Panel(
                "Wait for a connection",
                "On average; and who waits.",
                "s",
                [
                    (_average("bc_pool_wait_seconds_total", "bc_pool_requests_total", "instance"), "{{instance}}"),
                    ("bc_pool_waiting", "{{instance}} waiting"),
                    ("rate(bc_pool_errors_total[$__rate_interval])", "{{instance}} not had"),
                ],
            ),
            Panel(
                "What waits in the database",
                "Each receiver sees the same.",
                "short",
                [
                    ("max(bc_replan_waiting)", "nodes to plan again"),
                    ("max(bc_acceptances_running)", "acceptances"),
                    ("max by (state) (bc_commands_open)", "commands {{state}}"),
                ],
            ),
            Panel(
                "Stopped in pools", "The breaker, hygiene, maintenance.", "short", [("max by (kind) (bc_pool_stops)", "{{kind}}")]
            ),
            Panel(
                "Leases",
                "Who does which work: one of all receivers.",
                "short",
                [("bc_singleton_held == 1", "{{singleton}}: {{instance}}")],
            ),
            Panel(
                "Work of singletons",
                "Seconds a run, on average.",
                "s",
                [
                    (_average("bc_singleton_seconds_sum", "bc_singleton_seconds_count", "singleton"), "{{singleton}}"),
                ],
            ),
            Panel(
                "Runs of singletons",
                "By outcome, a second.",
                "ops",
                [
                    (_rate("bc_singleton_runs_total", "singleton, outcome"), "{{singleton}} {{outcome}}"),
                ],
            ),
            Panel(
                "Hygiene",
                "Conditions that sweeps changed; nodes that they could not write.",
                "short",
                [
                    (_increase("bc_hygiene_changes_total", "condition, change"), "{{condition}} {{change}}"),
                    ("sum(increase(bc_hygiene_failed_total[$__rate_interval]))", "failed"),
                ],
            ),
            Panel(
                "Limits met", "By limit, a second.", "ops", [(_rate("bc_limit_exceeded_total", "limit") + " > 0", "{{limit}}")]
            ),
            Panel(
                "Reports that were cut",
                "Conditions of reports from which nothing follows, a second.",
                "ops",
                [
                    (_rate("bc_conditions_dropped_total", "reason"), "{{reason}}"),
                ],
            ),
            Panel(
                "Webhook",
                "Age of the first event that is not told.",
                "s",
                [
                    ("max(bc_webhook_oldest_seconds)", "oldest"),
                    ("max(bc_webhook_failures)", "failures in a row"),
                ],
            ),
            Panel(
                "Events told",
                "And skipped, a second.",
                "ops",
                [
                    ("max(rate(bc_webhook_delivered_total[$__rate_interval]))", "delivered"),
                    ("max(rate(bc_webhook_skipped_total[$__rate_interval]))", "skipped"),
                ],
            ),
            Panel(
                "Certificates",
                "How long the receivers' own are good.",
                "s",
                [
                    ("min by (certificate) (bc_certificate_expiry_timestamp_seconds - time())", "{{certificate}}"),
                ],
            ),
            Panel("Database", "1: it answers.", "short", [("bc_database_up", "{{instance}}")]),
        ),
    ),
    (
        "bcd",
        (
            Panel(
                "Session states", "How many nodes are in which.", "short", [("sum by (state) (bcd_session_state)", "{{state}}")]
            ),
            Panel("Versions", "How many nodes run which.", "short", [("count by (version) (bcd_build_info)", "{{version}}")]),
            Panel(
                "Certificates of nodes",
                "What is left: the ten that end first, and how many nodes have none.",
                "s",
                [
                    ("bottomk(10, bcd_certificate_expiry_timestamp_seconds - time())", "{{instance}}"),
                    ("count(bcd_joined == 0)", "not joined"),
                ],
            ),
            Panel(
                "Sections that fail",
                "By section and reason, in an hour.",
                "short",
                [
                    (
                        'sum by (section, result) (increase(bcd_section_results_total{result!="ok"}[1h])) > 0',
                        "{{section}} {{result}}",
                    ),
                ],
            ),
            Panel(
                "Seconds a collection",
                "On average; the slowest ten nodes.",
                "s",
                [
                    ("topk(10, rate(bcd_collection_seconds_sum[1h]) / rate(bcd_collection_seconds_count[1h]))", "{{instance}}"),
                ],
            ),
            Panel(
                "Kernel log",
                "Nodes that cannot read it; records lost in an hour.",
                "short",
                [
                    ("count(bcd_kernel_log_available == 0)", "not readable"),
                    ("sum(increase(bcd_kernel_records_lost_total[1h]))", "records lost"),
                    ("sum(increase(bcd_kernel_records_overflowed_total[1h]))", "records beyond those kept"),
                ],
            ),
            Panel(
                "Workers that hang",
                "In a driver, not to be ended.",
                "short",
                [
                    ("sum(bcd_workers_stuck)", "there now"),
                    ("sum(increase(bcd_workers_abandoned_total[1h]))", "abandoned in an hour"),
                ],
            ),
            Panel(
                "Reports",
                "Sent by all nodes, a second.",
                "ops",
                [
                    ("sum(rate(bcd_reports_sent_total[$__rate_interval]))", "reports"),
                    ("sum(rate(bcd_offers_sent_total[$__rate_interval]))", "inventories"),
                    ("sum(rate(bcd_sections_sent_total[$__rate_interval]))", "sections"),
                ],
            ),
            Panel(
                "Memory", "The ten largest.", "bytes", [('topk(10, process_resident_memory_bytes{job="bcd"})', "{{instance}}")]
            ),
            Panel("Open files", "The ten with most.", "short", [('topk(10, process_open_fds{job="bcd"})', "{{instance}}")]),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append({"type": "row", "title": title, "id": len(panels) + 1, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        y += 1
        for number, panel in enumerate(row):
            place = {"x": number * _WIDTH % 24, "y": y + number * _WIDTH // 24 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_panel(panel, len(panels) + 1, place))
        y += -(-len(row) * _WIDTH // 24) * _HEIGHT
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "better-compute",
        "title": "better-compute",
        "tags": ["better-compute"],
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": [source]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend or "__auto"}
        for index, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.tells,
        "id": number,
        "gridPos": place,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
