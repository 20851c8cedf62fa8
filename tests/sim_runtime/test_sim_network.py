"""TCP semantics and the faults of the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lockstep.runtime.ports import Runtime
from lockstep.sim.runtime.transport import LinkSettings
from lockstep.sim.runtime.world import World, WorldSettings
from lockstep.values.errors import ConfigurationError

from .sim_parts import PORT, SERVER, Echo, Sink, dial, echo_server

Main = Callable[[Runtime], Coroutine[Any, Any, Any]]


def _world(seed: int = 1, **links: Any) -> World:
    return World(seed, WorldSettings(links=LinkSettings(**links)))


def _with_server(world: World, main: Main = echo_server) -> World:
    world.process("server", SERVER).start(main)
    world.run_for(0.01)
    return world


class _Collector:
    """A server that keeps its connections."""

    def __init__(self) -> None:
        self.ends: list[Sink] = []

    def accept(self) -> Sink:
        self.ends.append(Sink())
        return self.ends[-1]

    async def main(self, runtime: Runtime) -> None:
        await runtime.network.listen(SERVER, PORT, self.accept)
        await asyncio.Event().wait()


async def _ask(runtime: Runtime, message: bytes = b"hello") -> bytes:
    end = await dial(runtime)
    end.transport.write(message)
    await end.wait_for_bytes(len(message))
    return end.received


def test_bytes_arrive_in_order_under_loss_tails_and_fragments() -> None:
    message = b"".join(number.to_bytes(4, "big") for number in range(2000))

    async def main(runtime: Runtime) -> bytes:
        end = await dial(runtime)
        for at in range(0, len(message), 40):
            end.transport.write(message[at : at + 40])
            await asyncio.sleep(0.0003)
        await end.wait_for_bytes(len(message))
        return end.received

    with _with_server(_world(3, shape="heavy", loss=0.2, fragment=0.5)) as world:
        assert world.call(main, limit_s=600) == message
        assert world.effects["net.retransmitted"] > 10
        assert world.effects["net.fragmented"] > 10


def test_writes_of_one_instant_mostly_arrive_together() -> None:
    async def main(runtime: Runtime) -> int:
        end = await dial(runtime)
        for _ in range(50):
            end.transport.write(b"0123456789")
        await end.wait_for_bytes(500)
        return len(end.pieces)

    with _with_server(_world(4)) as world:
        assert 1 < world.call(main) < 40


def test_refused_hangs_and_times_out_are_told_apart() -> None:
    async def refused(runtime: Runtime) -> None:
        await dial(runtime, SERVER, 9)

    async def hangs(runtime: Runtime) -> float:
        began = runtime.clock.monotonic_s()
        with pytest.raises(TimeoutError):
            await dial(runtime, "10.9.9.9", PORT)
        return runtime.clock.monotonic_s() - began

    with _with_server(_world()) as world:
        with pytest.raises(ConnectionRefusedError):
            world.call(refused, name="one")
        assert world.call(hangs, name="two", limit_s=200) > 60
        assert world.effects["net.refused"] == 1


def test_a_lost_first_packet_delays_the_connection() -> None:
    async def main(runtime: Runtime) -> float:
        began = runtime.clock.monotonic_s()
        await dial(runtime)
        return runtime.clock.monotonic_s() - began

    with _with_server(_world(5, syn_loss=1.0)) as world:
        world.after(2.5, world.network.configure, None, None, label="x")
        world.after(2.5, lambda: world.network.configure(syn_loss=0.0), label="mend")
        assert world.call(main) > 2.5
        assert world.effects["net.syn_lost"] >= 2


def test_a_connection_may_be_dead_once_accepted() -> None:
    with (
        _with_server(_world(5, dead_on_accept=1.0)) as world,
        pytest.raises(AssertionError, match="not done"),
    ):
        world.call(_ask, limit_s=100)
    assert world.effects["net.dead_on_accept"] == 1


def test_a_taken_port_and_a_foreign_address_are_configuration_errors() -> None:
    async def twice(runtime: Runtime) -> None:
        await runtime.network.listen(SERVER, PORT, Echo)

    async def foreign(runtime: Runtime) -> None:
        await runtime.network.listen("10.7.7.7", PORT, Echo)

    with _with_server(_world()) as world:
        second = world.process("second", SERVER)
        second.expected_errors = (ConfigurationError,)
        second.start(twice)
        world.run_for(1)
        assert second.main_task is not None
        with pytest.raises(ConfigurationError, match=f"{SERVER}:{PORT} is in use"):
            second.main_task.result()
        with pytest.raises(ConfigurationError, match="not an address"):
            world.call(foreign)


def test_a_closed_server_refuses_and_frees_its_port() -> None:
    async def server(runtime: Runtime) -> None:
        first = await runtime.network.listen(SERVER, PORT, Echo)
        first.close()
        with pytest.raises(ConnectionRefusedError):
            await dial(runtime)
        await runtime.network.listen(SERVER, PORT, Echo)
        assert await _ask(runtime) == b"hello"

    with _world() as world:
        world.process("server", SERVER).start(server)
        world.run(5)
        world.check()
        assert not world.process("server").alive


def test_close_delivers_what_was_written_then_the_end() -> None:
    collector = _Collector()

    async def main(runtime: Runtime) -> list[Exception | None]:
        end = await dial(runtime)
        end.transport.write(b"last words")
        end.transport.close()
        await asyncio.sleep(1)
        return end.lost

    with _with_server(_world(), collector.main) as world:
        assert world.call(main) == [None]
    assert collector.ends[0].received == b"last words"
    assert collector.ends[0].ended
    assert collector.ends[0].lost == [None]


def test_a_reader_that_stalls_presses_the_writer_until_it_reads_again() -> None:
    collector = _Collector()

    async def main(runtime: Runtime) -> tuple[int, int, int]:
        end = await dial(runtime)
        await asyncio.sleep(0.1)
        collector.ends[0].transport.pause_reading()
        end.transport.write(bytes(100_000))
        await asyncio.sleep(1)
        assert (end.pressed, end.released) == (1, 0)
        collector.ends[0].transport.resume_reading()
        await asyncio.sleep(1)
        return end.pressed, end.released, end.transport.get_write_buffer_size()

    with _with_server(_world(), collector.main) as world:
        assert world.call(main) == (1, 1, 0)
    assert len(collector.ends[0].received) == 100_000


def test_a_partition_holds_bytes_and_healing_delivers_them() -> None:
    async def main(runtime: Runtime) -> tuple[bytes, float]:
        end = await dial(runtime)
        began = runtime.clock.monotonic_s()
        await asyncio.sleep(1)
        end.transport.write(b"through")
        await end.wait_for_bytes(7)
        return end.received, runtime.clock.monotonic_s() - began

    with _with_server(_world()) as world:
        client = world.process("caller").host
        world.after(0.5, world.network.partition, [client], [SERVER], label="cut")
        world.after(9.0, world.network.heal, label="heal")
        received, took = world.call(main)
        assert received == b"through"
        assert took > 8.4
        assert world.effects["net.held"] >= 1


def test_an_asymmetric_block_stops_one_direction_only() -> None:
    collector = _Collector()

    async def main(runtime: Runtime) -> bytes:
        end = await dial(runtime)
        await asyncio.sleep(1)
        end.transport.write(b"x" * 70_000)
        collector.ends[0].transport.write(b"answer")
        await asyncio.sleep(5)
        assert end.pressed == 1
        assert end.released == 0
        return end.received

    with _with_server(_world(), collector.main) as world:
        client = world.process("caller").host
        world.after(0.5, world.network.block, SERVER, client, label="cut")
        assert world.call(main) == b""
        assert len(collector.ends[0].received) == 70_000


def test_a_flapping_link_ends_up_open() -> None:
    with _with_server(_world()) as world:
        client = world.process("caller").host
        world.network.flap(client, SERVER, 0.5, 4)
        assert world.call(_ask) == b"hello"
        world.run_for(5)
        assert world.effects["net.block"] == 8
        assert not world.network.link(client, SERVER).blocked


def test_a_clog_delays() -> None:
    with _with_server(_world()) as world:
        world.network.clog(world.process("caller").host, SERVER, 3.0)
        assert world.call(_ask) == b"hello"
        assert world.now_s() > 3.0
        assert world.effects["net.clogged"] >= 1


def test_a_broken_connection_loses_bytes_on_their_way_and_tells_both_ends() -> None:
    collector = _Collector()

    async def main(runtime: Runtime) -> list[Exception | None]:
        end = await dial(runtime)
        await asyncio.sleep(0.1)
        end.transport.write(b"doomed")
        runtime.probes.observe("written")
        await asyncio.sleep(1)
        return end.lost

    with _with_server(_world(low_ms=5, high_ms=9), collector.main) as world:
        world.monitors.append(
            lambda at, process, kind, facts: (
                world.after(0, world.network.break_connections, label="break") and None
            )
        )
        lost = world.call(main)
        assert world.effects["net.bytes_lost"] == 6
    assert isinstance(lost[0], ConnectionResetError)
    assert isinstance(collector.ends[0].lost[0], ConnectionResetError)
    assert collector.ends[0].received == b""


def test_a_black_hole_tells_nobody() -> None:
    async def main(runtime: Runtime) -> list[Exception | None]:
        end = await dial(runtime)
        await asyncio.sleep(1)
        end.transport.write(b"into the void")
        await asyncio.sleep(300)
        assert end.received == b""
        return end.lost

    with _with_server(_world()) as world:
        world.after(0.5, world.network.blackhole_connections, label="hole")
        assert world.call(main, limit_s=400) == []
        assert world.effects["net.blackholed"] >= 1


def test_corruption_flips_one_bit() -> None:
    async def main(runtime: Runtime) -> bytes:
        end = await dial(runtime)
        end.transport.write(bytes(100))
        await end.wait_for_bytes(100)
        return end.received

    with _with_server(_world(fragment=0)) as world:
        world.network.configure(world.process("caller").host, SERVER, corrupt=1.0)
        received = world.call(main)
        assert sum(byte.bit_count() for byte in received) == 1
        assert world.effects["net.corrupted"] == 1


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_peer_is_noticed_and_its_port_refuses(seed: int) -> None:
    async def main(runtime: Runtime) -> Sink:
        end = await dial(runtime)
        await asyncio.sleep(2)
        with pytest.raises(ConnectionRefusedError):
            await dial(runtime)
        return end

    with _with_server(_world(seed)) as world:
        world.after(1.0, world.process("server").crash, "kill", label="kill")
        end = world.call(main)
        assert end.lost


def test_after_a_power_cut_there_is_silence_until_the_host_is_back() -> None:
    async def main(runtime: Runtime) -> tuple[bool, bool]:
        end = await dial(runtime)
        await asyncio.sleep(2)
        end.transport.write(b"anybody?")
        await asyncio.sleep(8)
        before = bool(end.lost)
        await asyncio.sleep(10)
        return before, bool(end.lost)

    with _with_server(_world()) as world:
        world.after(1.0, world.process("server").crash, "power", label="cut")
        world.after(15.0, world.process("server").start, label="boot")
        assert world.call(main) == (False, True)
        assert world.effects["net.half_open_reset"] == 1


def test_an_idle_half_open_connection_is_never_told() -> None:
    async def main(runtime: Runtime) -> bool:
        end = await dial(runtime)
        await asyncio.sleep(30)
        assert not end.lost
        end.transport.write(b"now")
        await asyncio.sleep(2)
        return bool(end.lost)

    with _with_server(_world()) as world:
        world.after(1.0, world.process("server").crash, "power", label="cut")
        world.after(5.0, world.process("server").start, label="boot")
        assert world.call(main)


def test_asyncio_streams_run_on_it() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def server(runtime: Runtime) -> None:
        await asyncio.start_server(serve, SERVER, PORT)
        await asyncio.Event().wait()

    async def main(runtime: Runtime) -> list[bytes]:
        reader, writer = await asyncio.open_connection(SERVER, PORT)
        lines = []
        for number in range(20):
            writer.write(b"line %d\n" % number)
            lines.append(await reader.readline())
        writer.close()
        await writer.wait_closed()
        return lines

    with _with_server(_world(fragment=0.5), server) as world:
        assert world.call(main) == [b"LINE %d\n" % number for number in range(20)]
