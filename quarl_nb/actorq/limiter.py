"""The rate limiter: how often a transition is sampled for each time one is inserted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RateLimiter:
    """Keeps samples / inserts near `samples_per_insert` by blocking whichever side is ahead.

    Reverb's ``SampleToInsertRatio`` (Cassirer et al. 2021, arXiv 2102.04736, section 3.3):
    ``inserts * samples_per_insert - samples`` stays within `tolerance` of its value when sampling
    began, ``min_size * samples_per_insert``.

    Args:
        samples_per_insert: transitions sampled for each one inserted; the paper's 16.
        min_size: transitions inserted before the first is sampled.
        tolerance: in sampled transitions; at least one batch sampled and one inserted fit in.
    """

    samples_per_insert: float
    min_size: int
    tolerance: float
    inserts: int = 0
    samples: int = 0

    def can_sample(self, n: int) -> bool:
        """Whether the learner may sample `n` transitions now."""
        lead = self._lead - n
        return self._can_begin and lead >= -self.tolerance

    def owes(self, n: int) -> bool:
        """Whether `n` transitions more have to be sampled for as many a transition as asked."""
        return self._can_begin and self._lead >= n

    def can_insert(self, n: int) -> bool:
        """Whether actors may insert `n` transitions now; always while the buffer fills."""
        # Where a resumed run owes as much as the tolerance, the message that completes the filling
        # would wait for samples, and these for the message.
        return not self._can_begin or self._lead + n * self.samples_per_insert <= self.tolerance

    @property
    def ahead(self) -> int:
        """Transitions sampled beyond what was asked for until now; less than 0 if owed."""
        return self.samples - self._asked

    def resume(self, inserts: int, ahead: int = 0) -> None:
        """Go on after `inserts` transitions, as far `ahead` as it was: else each part of a run
        would begin with the whole tolerance."""
        self.inserts = inserts
        self.samples = self._asked + ahead

    @property
    def _can_begin(self) -> bool:
        """Whether there is enough to sample from; not where a resumed run lacks its buffer."""
        return self.inserts >= max(self.min_size, 1)

    @property
    def _asked(self) -> int:
        return round(max(self.inserts - self.min_size, 0) * self.samples_per_insert)

    @property
    def _lead(self) -> float:
        """How far inserts are ahead of samples, in sampled transitions."""
        return (self.inserts - self.min_size) * self.samples_per_insert - self.samples
