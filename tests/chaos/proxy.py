"""A TCP proxy that misbehaves on demand: one for each worker and server, all in one thread of their own.

It knows nothing of Kafka; of Redis it only notices that a worker was handed the turn.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

CHUNK = 1 << 16


@dataclass(eq=False)
class Way:
    """What happens to the traffic of one proxy. Changed from any thread; looked at before each chunk."""

    refused: bool = False
    stalled: bool = False
    slow_s: float = 0.0  # each chunk comes this much later
    bytes_a_second: float = 0.0  # 0: as many as come
    replies_lost: bool = False  # what the client sends arrives; instead of the answer the connection ends

    def heal(self) -> None:
        self.refused = self.stalled = self.replies_lost = False
        self.slow_s = self.bytes_a_second = 0.0


class Proxy:
    """Listens on `port`, forwards to `target`. `on_turn` is called when a blocked pop is answered."""

    def __init__(self, port: int, target: int, on_turn: Callable[[], None] | None = None) -> None:
        self.port = port
        self.target = target
        self.way = Way()
        self._on_turn = on_turn
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    def cut(self) -> None:
        """End every connection, in the middle of whatever it carries."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.way.refused:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        asked = {"pop": False}
        try:
            both = (self._pump(reader, far_writer, asked, back=False), self._pump(far_reader, writer, asked, back=True))
            tasks = [asyncio.ensure_future(pump) for pump in both]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        finally:
            for one in (writer, far_writer):
                self._writers.discard(one)
                one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[str, bool], *, back: bool
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK):
                await self._wait(len(chunk))
                if back and self.way.replies_lost:
                    return
                if self._on_turn is not None:
                    self._notice(chunk, asked, back=back)
                writer.write(chunk)
                await writer.drain()

    async def _wait(self, size: int) -> None:
        way = self.way
        while way.stalled:  # noqa: ASYNC110  (set by another thread: there is no event to wait for)
            await asyncio.sleep(0.02)
        wait_s = way.slow_s + (size / way.bytes_a_second if way.bytes_a_second else 0.0)
        if wait_s:
            await asyncio.sleep(wait_s)

    def _notice(self, chunk: bytes, asked: dict[str, bool], *, back: bool) -> None:
        if not back:
            asked["pop"] = b"BLPOP" in chunk.upper()[:200]
        elif asked["pop"] and chunk.startswith(b"*2"):
            asked["pop"] = False
            assert self._on_turn is not None
            self._on_turn()


class Proxies:
    """Runs proxies in a thread."""

    def __init__(self, proxies: list[Proxy]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._servers = [self._run(proxy.serve()) for proxy in proxies]

    def call(self, function: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(function)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
