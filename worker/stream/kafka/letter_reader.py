"""Reads the dead-letter topic from its beginning to its end, for the commands. No group, no commit, never writes.

Dead letters are delivered at least once: one that came twice (same source, same bytes) is told once.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from zlib import crc32

from kafka import KafkaConsumer
from kafka import TopicPartition as ClientPartition

from worker.errors import ConfigError, Transient
from worker.stream.dead_letters import REASONS, DeadLetter, Refusal
from worker.stream.kafka.connection import KafkaConfig, consumer_arguments, opened, translated
from worker.stream.records import TopicPartition

_POLL_MS = 300
_SILENCE_S = 10.0  # nothing for so long although something is there


class StoredLetter(NamedTuple):
    """A dead letter and when it was written (milliseconds since 1970)."""

    letter: DeadLetter
    written_ms: int


class LetterReader:
    """Reads one dead-letter topic. `foreign` counts records in it that are no dead letters."""

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._topic = topic
        self.foreign = 0
        # Whatever retention removes while we read is gone: the earliest that is left is the right place to go on.
        arguments = consumer_arguments(config) | {"group_id": None, "auto_offset_reset": "earliest"}
        self._client: Any = opened(KafkaConsumer, config, **arguments)

    def read(self) -> Iterator[StoredLetter]:
        """Yield every letter up to the end that the topic has now, in the order of its partitions.

        Raises `ConfigError` where there is no such topic, `Transient` when the broker stops answering.
        """
        seen: set[tuple[TopicPartition, int, int]] = set()
        for record in self._records():
            letter = letter_of(record.headers, record.key, record.value)
            if letter is None:
                self.foreign += 1
                continue
            # A topic that was created again has old positions with new bytes: those are other letters.
            identity = (letter.source, letter.offset, crc32(letter.value or b""))
            if identity not in seen:
                seen.add(identity)
                yield StoredLetter(letter, record.timestamp)

    def close(self) -> None:
        self._client.close(autocommit=False)

    def _records(self) -> Iterator[Any]:
        doing = f"reading dead letters from topic {self._topic}"
        with translated(doing):
            numbers = self._client.partitions_for_topic(self._topic)
            if not numbers:
                raise ConfigError(f"there is no topic {self._topic}: `gradstream init` creates it")
            sources = [ClientPartition(self._topic, number) for number in sorted(numbers)]
            self._client.assign(sources)
            self._client.seek_to_beginning(*sources)
            ends = self._client.end_offsets(sources)
        heard = time.monotonic()
        while True:
            with translated(doing):
                fetched = self._client.poll(_POLL_MS)
                behind = any(self._client.position(source) < ends[source] for source in sources)
            for source in sources:
                yield from fetched.get(source, ())
            if fetched:
                heard = time.monotonic()
            elif not behind:
                return  # past the ends, and one more question brought nothing (a broker may name too small an end)
            elif time.monotonic() - heard > _SILENCE_S:
                raise Transient(f"{doing}: nothing came for {_SILENCE_S:g} s although there is more; try again")


def letter_of(headers: list[tuple[str, bytes | None]], key: bytes | None, value: bytes | None) -> DeadLetter | None:
    """Return the dead letter that a record is, None if it is none of ours."""
    texts = {name: content.decode(errors="replace") for name, content in headers if content is not None}
    reason = next((r for r in REASONS if r == texts.get("gradstream-reason")), None)
    topic = texts.get("gradstream-topic")
    numbers = [texts.get(f"gradstream-{name}", "") for name in ("partition", "offset")]
    if reason is None or not topic or not all(number.isdecimal() for number in numbers):
        return None
    source = TopicPartition(topic, int(numbers[0]))
    return DeadLetter(source, int(numbers[1]), key, value, Refusal(reason, texts.get("gradstream-detail", "")))
