"""How PyArrow sends a request to an S3 store again that was put off, or was not answered.

PyIceberg makes the class by its name, in the property `s3.retry-strategy-impl`.
"""

from __future__ import annotations

from pyarrow.fs import AwsDefaultS3RetryStrategy


class PatientS3Retries(AwsDefaultS3RetryStrategy):  # type: ignore[misc]
    """Sends a request eight times more; PyArrow does it twice by default.

    The pauses double from 25 ms on, to about 6 s in all: a store that is away is soon told.
    """

    def __init__(self) -> None:
        """Take no arguments, as PyIceberg gives none."""
        super().__init__(max_attempts=8)
