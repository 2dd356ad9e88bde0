"""Random traffic for a while, with clients that leave, bodies that are none and bursts over the limit: afterwards all is as before.

Half a minute among the slow tests; `make soak` lets it run for ten.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from running_server import LIMITS, RunningServer, dummy, until
from scraped import Difference, scrape
from soak_traffic import Traffic

SECONDS = float(os.environ.get("SOAK_SECONDS", "30"))
LIMITED = ("--max-concurrent-requests", "16", "--max-batch-total-tokens", "2048", "--payload-limit", "20000", "--json-output")
"""Few permits, so that bursts are refused, and few pages, so that sequences lose theirs."""

MAY_GROW_KIB = 16 * 1024
"""What allocators keep back; a leak of a kilobyte a request would be more after ten minutes."""


def memory_kib(process: int) -> int:
    (line,) = [line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1])


def state(server: RunningServer) -> dict[str, Any]:
    processes = {"http": server.process.pid, "engine": server.engine_process()}
    return {
        **{f"{name} KiB": memory_kib(process) for name, process in processes.items()},
        **{f"{name} files": len(os.listdir(f"/proc/{process}/fd")) for name, process in processes.items()},
        **{f"{name} threads": len(os.listdir(f"/proc/{process}/task")) for name, process in processes.items()},
    }


def idle(server: RunningServer) -> bool:
    now = scrape(server)
    gauges = ("inferometer_permits_in_use", "inferometer_requests_running", "inferometer_requests_waiting", "inferometer_kv_pages_in_use")
    return not any(now[name] for name in (*gauges, "tgi_queue_size", "tgi_batch_current_size", "tgi_batch_current_max_tokens"))


@pytest.mark.slow
def test_random_traffic_leaves_nothing_behind(models: dict[str, Path]) -> None:
    with dummy(models["llama"], *LIMITS, *LIMITED) as server:
        server.alive()
        Traffic(server, 0).run(SECONDS / 4)  # until caches and pools have the size that they keep
        until(lambda: idle(server))
        before = state(server)
        traffic, moved = Traffic(server, 1), Difference(server)
        traffic.run(SECONDS * 3 / 4)
        until(lambda: idle(server))
        moved.look()
        after = state(server)
        print(f"{traffic.sent} requests: {dict(traffic.answers)}; before {before}; after {after}")

        assert traffic.wrong == []
        assert traffic.answers.total() == traffic.sent, "a request without an answer, or with two"
        assert traffic.answers.keys() <= {"success", "refused", "overloaded", "left"}
        assert min(traffic.answers.values()) > 0
        assert moved("tgi_request_count") == traffic.sent
        assert moved("tgi_request_success") + moved.total("tgi_request_failure{") == traffic.sent
        assert moved.total("inferometer_requests_total{") == traffic.sent
        left = traffic.answers["left"]  # may have been anything by then
        for word, name in (
            ("success", "tgi_request_success"),
            ("refused", 'tgi_request_failure{err="validation"}'),
            ("overloaded", 'tgi_request_failure{err="overloaded"}'),
        ):
            assert traffic.answers[word] <= moved(name) <= traffic.answers[word] + left
        assert 0 < moved('tgi_request_failure{err="dropped"}') <= left
        assert moved('tgi_request_failure{err="generation"}') == moved('tgi_request_failure{err="incomplete"}') == 0
        assert moved("tgi_request_duration_count") == moved("inferometer_e2e_request_latency_seconds_count") == moved("tgi_request_success")
        assert moved("inferometer_generation_tokens_total") <= moved("inferometer_emitted_tokens_total")
        for name in ("http", "engine"):
            assert after[f"{name} KiB"] <= before[f"{name} KiB"] + MAY_GROW_KIB
            assert after[f"{name} files"] <= before[f"{name} files"] + 1
            assert after[f"{name} threads"] <= before[f"{name} threads"] + 6  # a pool that starts its threads one by one
        assert '"level": "ERROR"' not in server.log
        server.alive()
        assert server.end() == 0
