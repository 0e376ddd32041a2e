"""The spool of a round's replies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from fedstill.core.files import naming
from fedstill.core.message import Message
from fedstill.core.scratch import Scratch

__all__ = ["Spool"]

IN_MEMORY = 64 << 20  # replies of a round beyond this many bytes are spooled to disk


class Spool:
    """Holds the replies of a round until they are read: in memory while they are small, in files beyond that.

    >>> spool = Spool()
    >>> spool.keep(1, "train", "a", Message.of(samples=3))().values
    {'samples': 3}
    >>> spool.close()
    """

    def __init__(self, most: int = IN_MEMORY) -> None:
        self._scratch = Scratch("spool")
        self.folder = self._scratch.folder
        self.most = most
        self.held = 0

    def begin(self, round: int) -> None:
        """Discard other rounds. Files are unlinked, not overwritten: tensors may still be mapped from them."""
        for old in self.folder.glob("*.safetensors"):
            if not old.name.startswith(f"{round}-"):
                old.unlink()
        self.held = 0

    def path(self, round: int, phase: str, client: str) -> Path:
        """The file of one reply."""
        return self.folder / f"{round}-reply-{quote(client, safe='')}-{phase}.safetensors"

    def keep(self, round: int, phase: str, client: str, reply: Message) -> Callable[[], Message]:
        """Keep a reply; returns a function that reads it."""
        self.held += reply.nbytes
        if self.held <= self.most:
            return lambda: reply
        path = self.path(round, phase, client)
        with naming(path):
            reply.write(path)
        return lambda: Message.load(path)

    def reader(self, path: Path) -> Callable[[], Message]:
        """A function that reads the reply that another process wrote to ``path``; it reads only once while replies are small."""
        kept: list[Message] = []

        def read() -> Message:
            if kept:
                return kept[0]
            message = Message.load(path)
            self.held += message.nbytes
            if self.held <= self.most:
                kept.append(message)
            return message

        return read

    def close(self) -> None:
        """Remove the files."""
        self._scratch.close()
