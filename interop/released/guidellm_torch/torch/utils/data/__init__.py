from .dataloader import DataLoader  # noqa: F401
from .dataset import IterableDataset  # noqa: F401


def get_worker_info():
    """There are no workers: prompts are made where they are asked for."""
    return None
