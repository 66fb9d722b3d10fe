"""The result of a whole replay, as the state store has it: `status`, and what was sent and refused in which time."""

from collections.abc import Mapping
from typing import Any

from worker.cli.connect import ready_store
from worker.cli.output import console, facts, figure
from worker.cli.status import status_document
from worker.cli.status_view import print_status
from worker.settings import Settings
from worker.state.store import Ledger


def result_document(
    settings: Settings, lag: Mapping[str, int], refused: Mapping[str, int], *, sent: int, seconds: float
) -> dict[str, Any]:
    """Return what `demo --once --json` prints. `balanced` says whether every record is in one column of the ledger."""
    store = ready_store(settings)
    partitions = [stored.state for stored in store.partitions()]
    document = status_document(settings.model.name, store.load(), partitions, store.workers(), dict(lag) or None)
    return document | {
        "sent": sent,
        "refused": dict(sorted(refused.items())),
        "balanced": all(partition.ledger.balanced() for partition in partitions) and bool(partitions),
        "seconds": round(seconds, 1),
    }


def print_result(document: Mapping[str, Any]) -> None:
    print_status(document, {}, None)
    made = facts()
    made.add_row("sent", f"{figure(document['sent'])} records, all settled in {document['seconds']} s")
    ledger = Ledger(**document["ledger"])
    made.add_row(
        "ledger", f"{figure(ledger.consumed)} consumed: {'balanced' if document['balanced'] else 'UNBALANCED'}"
    )
    for reason, count in document["refused"].items():
        made.add_row("refused", f"{reason} {figure(count)}")
    console().print(made)
