from typing_extensions import disjoint_base

__all__ = ["Register"]

@disjoint_base
class Register:
    def __len__(self) -> int: ...
