"""One run: a world of its own, faults for a minute, then healed, drained, ended, and judged."""

import dataclasses
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import redis
from kafka.admin import KafkaAdminClient, NewTopic

from tests.chaos.check.events import Rules
from tests.chaos.check.stored import Stored, read_all
from tests.chaos.check.topics import read_letters, read_topic
from tests.chaos.check.verdict import Case, Findings, judge
from tests.chaos.faults import Chaos
from tests.chaos.fleet import Fleet
from tests.chaos.plan import FEATURES, Plan
from tests.chaos.proxy import Proxies, Proxy
from tests.chaos.sender import Sender
from tests.chaos.servers import Servers
from tests.chaos.stream import messages
from tests.chaos.watch import Watch
from tests.unit.reference import Settings

READY_S = 120.0
DRAINED_S = 90.0
TICK_S = 0.02


class Run:
    """Everything that one plan needs. `go` returns what it came to, ready for JSON."""

    def __init__(self, plan: Plan, servers: Servers, folder: Path) -> None:
        self.plan = plan
        self.servers = servers
        self.folder = folder
        self.model = f"chaos-{plan.seed}-{uuid.uuid4().hex[:8]}"
        self.roles = ["examples"] if plan.settings["stream.mode"] == "inline" else ["features", "labels"]
        self.topics = {role: f"{self.model}-{role}" for role in (*self.roles, "metrics", "dead-letters")}
        self.problems: list[str] = []

    def go(self) -> dict[str, Any]:
        begun = time.monotonic()
        self.servers.heal()
        self._create_topics()
        try:
            with ExitStack() as stack:
                ports = self.servers.ports
                ways = (
                    [Proxy(p, target) for p, target in zip(ports.proxies, ports.listeners, strict=True)],
                    [Proxy(p, ports.redis) for p in ports.redis_proxies],
                )
                proxies = stack.enter_context(closing(Proxies([*ways[0], *ways[1]])))
                fleet = stack.enter_context(closing(Fleet(self.folder, self._settings(), self._per_slot())))
                watch = stack.enter_context(Watch(self.servers.redis_url, self.model).watching())
                chaos = Chaos(self.servers, fleet, proxies, ways, watch, self.model)
                self._play(fleet, chaos, watch)
                drained_s = self._drain(fleet, chaos)
                self._end(fleet, chaos)
            findings, stored = self._judge()
            unbuilt = self._verify(stored)
            return self._report(
                findings, fleet, chaos, watch, {"drained_s": drained_s, "unbuilt": unbuilt, "begun": begun}
            )
        finally:
            self._delete_topics()

    # -- the world ------------------------------------------------------------------------------------------------

    def _create_topics(self) -> None:
        with closing(KafkaAdminClient(bootstrap_servers=self.servers.kafka)) as admin:
            admin.create_topics(
                [NewTopic(t, self.plan.partitions if r in self.roles else 1, 1) for r, t in self.topics.items()]
            )

    def _delete_topics(self) -> None:
        with closing(KafkaAdminClient(bootstrap_servers=self.servers.kafka)) as admin:
            admin.delete_topics(list(self.topics.values()))

    def _settings(self) -> dict[str, Any]:
        return {
            **self.plan.settings,
            "model.name": self.model,
            "model.features": list(FEATURES),
            "stream.features_topic": self.topics.get("features", "unused-features"),
            "stream.labels_topic": self.topics.get("labels", "unused-labels"),
            "stream.examples_topic": self.topics.get("examples", "unused-examples"),
            "stream.metrics_topic": self.topics["metrics"],
            "stream.dead_letters_topic": self.topics["dead-letters"],
            "observe.http_port": 0,
        }

    def _per_slot(self) -> list[dict[str, str]]:
        ports = self.servers.ports
        return [
            {
                "kafka.bootstrap_servers": f"localhost:{kafka}",
                "redis.url": f"redis://127.0.0.1:{redis_port}/0",
                "kafka.group_instance_id": f"{self.model}-{i}" if self.plan.static else "",
            }
            for i, (kafka, redis_port) in enumerate(zip(ports.proxies, ports.redis_proxies, strict=True))
        ]

    # -- the play -------------------------------------------------------------------------------------------------

    def _play(self, fleet: Fleet, chaos: Chaos, watch: Watch) -> None:
        plan = self.plan
        for number in range(plan.workers):
            fleet.start(number)
        children = [fleet.slots[n].child for n in range(plan.workers)]
        self._until(chaos, lambda: all(c and c.said("partition claimed") for c in children), READY_S, "all have begun")
        sender = Sender(self.servers.kafka, self.topics, messages(plan))
        sender.start()
        watch.measure_silence()
        begun = time.monotonic()
        chaos.schedule(plan.faults, begun)
        self._until(chaos, lambda: time.monotonic() > begun + plan.seconds, plan.seconds + 60, "the play is over")
        watch.end_silence()
        chaos.end()
        sender.join(60)
        if sender.problem:
            self.problems.append(f"harness: {sender.problem}")

    def _until(self, chaos: Chaos, condition: Callable[[], bool], deadline_s: float, what: str) -> bool:
        end = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > end:
                self.problems.append(f"not within {deadline_s:g} s: {what}")
                return False
            chaos.tick()
            time.sleep(TICK_S)
        return True

    def _drain(self, fleet: Fleet, chaos: Chaos) -> float:
        """Start a worker that ends when everything is learned, beside those that live; return how long it took."""
        begun = time.monotonic()
        last = fleet.slots[-1]
        if not fleet.living():
            fleet.start(0)
        fleet.start(last.number, "--drain")
        last.leaves, last.leaves_by = "drain", begun + DRAINED_S + 10
        self._until(chaos, lambda: last.child is None, DRAINED_S, "everything is learned")
        return time.monotonic() - begun

    def _end(self, fleet: Fleet, chaos: Chaos) -> None:
        for number in fleet.living():
            fleet.end(number, troubled=False)
        self._until(chaos, lambda: all(slot.child is None for slot in fleet.slots), 20, "all workers have ended")

    # -- the judgement --------------------------------------------------------------------------------------------

    def _judge(self) -> tuple[Findings, Stored]:
        kafka = self.servers.kafka
        with redis.Redis.from_url(self.servers.redis_url) as client:
            stored = read_all(client, self.model)
        topics = {(role, n): rs for role in self.roles for n, rs in read_topic(kafka, self.topics[role]).items()}
        names = {role: self.topics[role] for role in self.roles}
        letters = read_letters(kafka, self.topics["dead-letters"])
        return judge(Case(rules(self.plan), learning(self.plan), names, topics, stored, letters)), stored

    def _verify(self, stored: Stored) -> int | None:
        """Let the program rebuild three versions from the log; return how many it could not, None without the command."""
        versions = [int(entry.version.partition(":")[0]) for entry in stored.log if entry.kind == "train"]
        if not versions:
            return None
        failed = 0
        environment = Fleet(self.folder, self._settings() | self._direct(), [{}]).environment(0)
        for version in sorted({versions[len(versions) // 3], versions[2 * len(versions) // 3], versions[-1]}):
            command = [sys.executable, "-m", "worker", "lineage", "verify", "--state-version", str(version)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode == 2 and "No such command" in done.stderr:
                return None
            if done.returncode:
                failed += 1
                self.problems.append(
                    f"version {version} does not rebuild: {done.returncode} {done.stderr.strip()[-400:]}"
                )
        return failed

    def _direct(self) -> dict[str, str]:
        return {"kafka.bootstrap_servers": self.servers.kafka, "redis.url": self.servers.redis_url}

    def _report(
        self, findings: Findings, fleet: Fleet, chaos: Chaos, watch: Watch, took: Mapping[str, Any]
    ) -> dict[str, Any]:
        problems = [*self.problems, *fleet.surprises, *findings.problems]
        if watch.unbalanced:
            problems.append(f"{watch.unbalanced} times a ledger did not balance while the run went on")
        said = fleet.said()
        counters = findings.counters() | said | {
            "unbalanced_on_the_way": watch.unbalanced,
            "versions_not_rebuilt": took["unbuilt"],
            "unplanned_exits": len(fleet.surprises),
            "conflicts": watch.conflicts(),
            "went_back_seen": watch.went_back,
            "longest_silence_s": round(watch.longest_silence_s, 2),
            "longest_silence_in_peace_s": round(watch.longest_silence_in_peace_s, 2),
            "longest_end_s": round(fleet.longest_end_s, 2),
            "drained_s": round(took["drained_s"], 2),
            "starts": fleet.starts,
        }  # fmt: skip
        plan = self.plan
        return {
            "seed": plan.seed,
            "verdict": "sound" if not problems else "failed",
            "problems": problems,
            "counters": counters,
            "faults": chaos.counts,
            "settings": {
                **plan.settings,
                "workers": plan.workers,
                "partitions": plan.partitions,
                "static": plan.static,
            },
            "planned": [list(fault) for fault in plan.faults],
            "seconds": plan.seconds,
            "took_s": round(time.monotonic() - took["begun"], 1),
            "model": self.model,
        }


def rules(plan: Plan) -> Rules:
    settings = plan.settings
    return Rules(
        features=FEATURES,
        joined=settings["stream.mode"] == "joined",
        window_ms=settings["join.window_s"] * 1000,
        lateness_ms=settings["join.lateness_s"] * 1000,
        disorder_ms=settings["join.disorder_s"] * 1000,
        remember=settings["join.remember"],
        negative=settings["join.on_expiry"] == "negative",
        follows=settings["join.idle_labels"] == "advance",
    )


def learning(plan: Plan) -> Settings:
    settings = plan.settings
    return dataclasses.replace(
        Settings(),
        reduction=settings["train.reduction"],
        l2=settings["train.l2"],
        clip=settings["train.clip_norm"],
        batch=settings["train.batch_size"],
    )
