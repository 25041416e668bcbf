"""Keeping a run's lease while its driver works."""

from __future__ import annotations

import threading
from types import TracebackType

from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain.run import RunStatus
from lakehouse_backfill.errors import RunMoved

#: A lease is renewed this often while it lasts, so that one failed renewal does not end it.
RENEWALS_PER_LEASE = 3


class RenewedLease:
    """Renews a run's lease in the background until the block ends.

    The lease only tells others that the driver lives. That an overtaken driver changes nothing is
    the fences' work, whatever this thread notices, and when.
    """

    def __init__(self, bench: Context, status: RunStatus) -> None:
        self._bench = bench
        self._run_id = status.run_id
        self.epoch = status.epoch
        self._lost: RunMoved | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> RenewedLease:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def require(self) -> None:
        """Raise RunMoved when the run was taken over or moved: going on would be for nothing."""
        if self._lost is not None:
            raise self._lost

    def _renew(self) -> None:
        pause_s = self._bench.profile.lease_seconds / RENEWALS_PER_LEASE
        while not self._is_over.wait(pause_s):
            try:
                self._bench.runs.renew(self._run_id, self.epoch, self._bench.lease_end())
            except RunMoved as error:
                self._lost = error
                return
            except Exception as error:  # noqa: BLE001 (whatever it is, the next turn may do)
                # The catalog may be back at the next turn; until then the lease just runs on.
                self._bench.journal.log("lease not renewed", problem=str(error))
