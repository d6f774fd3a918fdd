"""The order of queries in RL: a pure function of (seed, epoch), so that a resumed run sees what an uninterrupted one would."""

from __future__ import annotations

from trl.trainer.utils import RepeatSampler


class EpochSampler(RepeatSampler):
    """TRL's sampler, whose order TRL itself begins anew after a restart, told the epoch by the data loader."""

    def set_epoch(self, epoch: int) -> None:
        """Shuffle as this epoch does; the first one shuffles as TRL would."""
        self.generator.manual_seed(self.seed + epoch)
