import typing

T = typing.TypeVar("T")


class IterableDataset(typing.Generic[T]):
    pass
