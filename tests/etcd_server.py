"""Real etcd processes for tests: one member or three, on free loopback ports, with flags that 3.4 and 3.5 both know."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

_START_S = 20.0


def free_ports(count: int) -> list[int]:
    """Give ports that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Member:
    """One etcd process and its folder."""

    def __init__(self, name: str, folder: Path, client_port: int, peer_port: int) -> None:
        self.name = name
        self.folder = folder
        self.client_port = client_port
        self.peer_port = peer_port
        self.process: subprocess.Popen[bytes] | None = None
        self.flags: tuple[str, ...] = ()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def pause(self) -> None:
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """End the process as a power cut would, and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class EtcdServer:
    """A cluster of one or three members."""

    def __init__(
        self, size: int = 1, *, flags: Sequence[str] = (), scheme: str = "http", durable: bool = False
    ) -> None:
        if shutil.which("etcd") is None:
            pytest.fail("these tests need an etcd program: install etcd-server, or leave them out with -m 'not etcd'")
        self._root = Path(tempfile.mkdtemp(prefix="kokuban-etcd-"))
        self._scheme = scheme
        ports = free_ports(2 * size)
        self.members = [
            Member(f"m{place}", self._root / f"m{place}", ports[2 * place], ports[2 * place + 1])
            for place in range(size)
        ]
        self._flags = [
            *flags,
            *([] if durable else ["--unsafe-no-fsync"]),
            *(["--heartbeat-interval=50", "--election-timeout=500"] if size > 1 else []),
        ]

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def start(self, member: Member) -> None:
        """Start a member, or start it again on what it stored."""
        cluster = ",".join(f"{each.name}=http://127.0.0.1:{each.peer_port}" for each in self.members)
        client = f"{self._scheme}://{member.endpoint}"
        peer = f"http://127.0.0.1:{member.peer_port}"
        with (self._root / f"{member.name}.log").open("ab") as log:
            member.process = subprocess.Popen(
                [
                    "etcd",
                    f"--name={member.name}",
                    f"--data-dir={member.folder}",
                    f"--listen-client-urls={client}",
                    f"--advertise-client-urls={client}",
                    f"--listen-peer-urls={peer}",
                    f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster={cluster}",
                    "--initial-cluster-state=new",
                    *self._flags,
                ],
                stdout=log,
                stderr=log,
            )

    async def start_all(self) -> None:
        """Start every member and wait until the cluster answers."""
        for member in self.members:
            self.start(member)
        for member in self.members:
            await self.answers(member)

    async def answers(self, member: Member) -> None:
        """Wait until the member takes part."""
        async with asyncio.timeout(_START_S):
            while not await asyncio.to_thread(self._healthy, member):  # noqa: ASYNC110 - another process tells of itself only when asked
                await asyncio.sleep(0.02)

    def _healthy(self, member: Member) -> bool:
        assert member.process is not None
        if member.process.poll() is not None:
            pytest.fail(f"etcd ended: {(self._root / f'{member.name}.log').read_text(errors='replace')[-2000:]}")
        if self._scheme == "https":  # with client certificates only a client can ask; being there is enough here
            with suppress(OSError), socket.create_connection(("127.0.0.1", member.client_port), timeout=1):
                return b"serving" in (self._root / f"{member.name}.log").read_bytes()
            return False
        with suppress(OSError), socket.create_connection(("127.0.0.1", member.client_port), timeout=1) as connection:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            connection.settimeout(1)
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
            return b'"true"' in answer
        return False

    def ctl(self, *arguments: str, member: Member | None = None, **environment: str) -> str:
        """Run etcdctl on one member; give what it prints."""
        endpoint = (member or self.members[0]).endpoint
        done = subprocess.run(
            ["etcdctl", f"--endpoints={endpoint}", *arguments],
            env={"ETCDCTL_API": "3", "PATH": "/usr/local/bin:/usr/bin:/bin", **environment},
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        return done.stdout

    def leader(self) -> Member:
        """Give the member that leads."""
        for member in self.members:
            if member.process is None:
                continue
            status = self.ctl("endpoint", "status", member=member).split(", ")
            if status[4] == "true":
                return member
        raise AssertionError("nobody leads")

    def have_lead(self, member: Member) -> None:
        """Make a member the leader."""
        leader = self.leader()
        if leader is not member:
            listed = (line.split(", ") for line in self.ctl("member", "list").splitlines())
            ids = {name: number for number, _, name, *_ in listed}
            self.ctl("move-leader", ids[member.name], member=leader)

    def close(self) -> None:
        """End every process and remove the folders."""
        for member in self.members:
            if member.process is not None:
                with suppress(ProcessLookupError):
                    member.resume()
            member.kill()
        shutil.rmtree(self._root, ignore_errors=True)
