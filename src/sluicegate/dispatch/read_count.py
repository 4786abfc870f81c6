"""`ReadCount`: how many entries of a stream to ask for in one read.

The entries of a read are bounded in number, its reply is bounded in bytes, and how large an entry
is shows only when it comes. A reply that is too large is lost with its connection; the next read
asks for a quarter. Each read that succeeds doubles the count again.
"""

__all__ = ["ReadCount"]


class ReadCount:
    def __init__(self, most: int) -> None:
        self.most = most
        self._count = most

    def within(self, wanted: int) -> int:
        """The number to ask for, of those that are wanted."""
        return min(wanted, self._count)

    def shrink(self, asked: int) -> bool:
        """The reply to a read of `asked` entries was too large; whether fewer can be asked for."""
        self._count = max(asked // 4, 1)
        return asked > 1

    def grow(self) -> None:
        """A read succeeded."""
        self._count = min(2 * self._count, self.most)

    def __repr__(self) -> str:
        return f"ReadCount({self._count} of {self.most})"
