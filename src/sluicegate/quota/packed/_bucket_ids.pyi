from typing_extensions import disjoint_base

__all__ = ["BucketIds"]

@disjoint_base
class BucketIds:
    def __len__(self) -> int: ...
