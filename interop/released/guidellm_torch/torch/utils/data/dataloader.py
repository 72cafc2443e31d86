import typing

T = typing.TypeVar("T")


class DataLoader(typing.Generic[T]):
    """Gives the items of an iterable dataset, one in each batch."""

    def __init__(self, dataset, batch_size, collate_fn, **_):
        assert batch_size == 1
        self.dataset, self.collate_fn = dataset, collate_fn

    def __iter__(self):
        for item in self.dataset:
            yield self.collate_fn([item])
