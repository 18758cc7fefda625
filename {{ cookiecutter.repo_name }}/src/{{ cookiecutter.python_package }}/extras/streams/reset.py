"""What ``kedro streams reset`` does: delete what belongs together, together."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..datasets import StreamSink
from . import checks, locks
from .errors import TROUBLE, StreamsError, first_sentence
from .files import at
from .session import our_command, shown
from .status import size
from .topology import Topology


@dataclass
class Reset:
    """What starting streams over would delete, and what it would not."""

    places: list[str]  # a checkpoint before the output that is worthless without it
    checkpoints: list[str]
    remarks: list[str]

    def lines(self) -> Iterator[str]:
        """Say what will be deleted, and what follows from it."""
        for place in self.places:
            yield f"delete {shown(place)} ({size(at(place).size())})"
        yield from self.remarks

    def carry_out(self) -> None:
        """Delete it, while no run can begin."""
        try:
            held = [locks.Lock(checkpoint) for checkpoint in self.checkpoints]
            for place in self.places:
                at(place).delete()
            for lock in held:
                lock.release()
        except TROUBLE as error:
            raise StreamsError(
                f"not all was deleted: {first_sentence(error)}; once that is mended, "
                "type the same again"
            ) from error


def plan_reset(names: tuple[str, ...], topology: Topology) -> Reset:
    """Find what belongs to streams; refuse streams that run, or that do not exist."""
    checks.refuse(checks.unbuilt(topology, names))
    if unknown := sorted(set(names) - topology.streams.keys()):
        raise StreamsError(
            f"there is no stream {unknown[0]}; there are {', '.join(topology.streams)}"
        )
    streams = {name: topology.streams[name] for name in names}
    checks.refuse(checks.locked(streams))
    checkpoints = {stream.checkpoint for stream in streams.values()}
    all_streams = topology.streams.items()
    sharing = {n: s for n, s in all_streams if s.checkpoint in checkpoints - {None}}
    checks.refuse(checks.shared_places(sharing))
    places = [p for s in streams.values() for p in (s.checkpoint, s.output) if p]
    there = [place for place in places if at(place).exists()]
    mine = [place for place in there if place in checkpoints]
    return Reset(there, mine, list(_remarks(streams, topology)))


def _remarks(streams: dict[str, StreamSink], topology: Topology) -> Iterator[str]:
    for name, stream in streams.items():
        if stream.checkpoint and not stream.output:
            advice = "empty that first unless it overwrites"
            if stream.adds_up:
                advice = "empty that first, or it adds every row to its sums once more"
            elif stream.is_per_batch:
                advice = "empty that first, because batches are numbered anew"
            yield (
                f"{name} will write all its rows again, and what it wrote to "
                f"{shown(stream.place)} stays: {advice}"
            )
        below = [n for n in topology.downstream(name) if n not in streams]
        if below:
            yield (
                f"{' and '.join(below)} will see all rows of {name} again, and count "
                "them twice unless that is harmless; to start over with all of them: "
                f"{our_command('reset', *streams, *below)}"
            )
