"""The workers of a run as child processes in numbered slots: started, killed, paused, ended, and started again.

Also the supervisor that notices a worker which ended by itself, and says whether that was allowed.
"""

import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.world import Child

ENDED_WITHIN_S = 25.0  # ten are promised and tested where the machine is quiet; here others take its cores
NOT_YET_LISTENING = {0, 6, -signal.SIGTERM}  # told to end while Python still starts


@dataclass
class Slot:
    """One worker, or the place of one. `leaves` is why an exit is expected: "kill", "end", or "" for not at all."""

    number: int
    child: Child | None = None
    leaves: str = ""
    leaves_by: float = 0.0
    asked_at: float = 0.0
    troubled: bool = False  # something was broken while it was told to end: it may say that it could not reach it
    paused: bool = False
    started: int = 0

    @property
    def living(self) -> bool:
        return self.child is not None and not self.leaves


class Fleet:
    """All slots. Every method is called from one thread, but `kill_now`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], per_slot: list[dict[str, str]]) -> None:
        self.folder = folder
        self.slots = [Slot(i) for i in range(len(per_slot))]
        self.starts = 0
        self.longest_end_s = 0.0
        self.surprises: list[str] = []  # exits that nothing had asked for, or with a code that nothing explains
        self._environments = [_environment({**settings, **more}) for more in per_slot]

    def environment(self, number: int) -> dict[str, str]:
        return self._environments[number]

    def start(self, number: int, *arguments: str) -> None:
        slot = self.slots[number]
        if slot.child is not None:
            return
        slot.started += 1
        self.starts += 1
        log = self.folder / f"worker-{number}-{slot.started}.log"
        slot.child = Child(["worker", "--init", *arguments], self._environments[number], log)
        slot.leaves, slot.troubled, slot.paused = "", False, False

    def kill_now(self, number: int) -> None:
        """SIGKILL, from any thread; `look` buries it."""
        slot = self.slots[number]
        if slot.child is not None and slot.living:
            slot.leaves, slot.leaves_by = "kill", time.monotonic() + 5
            slot.child.kill()

    def end(self, number: int, *, troubled: bool) -> bool:
        """SIGTERM a living worker that is not paused."""
        slot = self.slots[number]
        if not slot.living or slot.paused or slot.child is None:
            return False
        slot.leaves, slot.troubled, slot.asked_at = "end", troubled, time.monotonic()
        slot.leaves_by = slot.asked_at + ENDED_WITHIN_S
        slot.child.kill(signal.SIGTERM)
        return True

    def pause(self, number: int) -> bool:
        slot = self.slots[number]
        if not slot.living or slot.paused or slot.child is None:
            return False
        slot.paused = True
        slot.child.kill(signal.SIGSTOP)
        return True

    def resume(self, number: int, started: int) -> None:
        """Wake it, if it still is the process that was paused."""
        slot = self.slots[number]
        if slot.paused and slot.started == started and slot.child is not None:
            slot.paused = False
            slot.child.kill(signal.SIGCONT)

    def living(self) -> list[int]:
        return [slot.number for slot in self.slots if slot.living]

    def look(self, *, trouble: bool) -> list[int]:
        """Bury the dead; return the slots of those that died without having been asked to."""
        surprised = []
        for slot in self.slots:
            if slot.child is None:
                continue
            slot.troubled |= trouble
            code = slot.child.process.poll()
            if code is None:
                if slot.leaves and time.monotonic() > slot.leaves_by:
                    self._say(slot, f"has not ended within {ENDED_WITHIN_S:g} s")
                    slot.child.kill(signal.SIGABRT)  # with PYTHONFAULTHANDLER its log then says where it was
                    slot.leaves, slot.leaves_by = "kill", time.monotonic() + 5
                continue
            if slot.leaves == "end":
                self.longest_end_s = max(self.longest_end_s, time.monotonic() - slot.asked_at)
            if not self._expected(slot, code):
                self._say(slot, f"ended with {code}")
                if not slot.leaves:
                    surprised.append(slot.number)
            slot.child.close()
            slot.child = None
        return surprised

    def _expected(self, slot: Slot, code: int) -> bool:
        if slot.leaves == "kill":
            return code in (-signal.SIGKILL, -signal.SIGABRT, 0)
        assert slot.child is not None
        if slot.leaves == "drain":
            return code == 0
        if slot.leaves == "end":
            if not slot.child.said("serving metrics"):
                return code in NOT_YET_LISTENING
            return code == 0 or (code == 6 and slot.troubled)
        return False

    def _say(self, slot: Slot, what: str) -> None:
        assert slot.child is not None
        last = slot.child.tail().splitlines()[-1:]
        self.surprises.append(f"{slot.child.log_path.name} {what}: {''.join(last)[:400]}")

    def close(self) -> None:
        for slot in self.slots:
            if slot.child is not None:
                slot.child.close()
                slot.child = None

    def said(self) -> dict[str, int]:
        """Count in all logs what the workers say of themselves."""
        counts = dict.fromkeys(("fenced", "went_back", "rebalances", "clients_replaced"), 0)
        for log in self.folder.glob("worker-*.log"):
            for line in log.read_text(errors="replace").splitlines():
                event = _event(line)
                counts["fenced"] += event.get("event") == "partitions dropped" and event.get("reason") == "fenced"
                counts["went_back"] += event.get("event") == "the state store went back"
                counts["rebalances"] += event.get("event") == "rebalanced"
                counts["clients_replaced"] += event.get("event") == "kafka_client_replaced"
        return counts


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _environment(settings: Mapping[str, Any]) -> dict[str, str]:
    variables = {
        f"GRADSTREAM_{key.replace('.', '__').upper()}": value if isinstance(value, str) else json.dumps(value)
        for key, value in settings.items()
    }
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GRADSTREAM_")}
    return clean | variables | {"PYTHONFAULTHANDLER": "1"}
