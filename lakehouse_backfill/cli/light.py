"""Starting fast: what a command that computes nothing leaves out."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def tune_gc() -> None:
    """Let Python look for cycles less often.

    Loading the libraries makes many objects that live on; searching them again and again takes a
    fifth of a short command's time.
    """
    gc.set_threshold(200_000, 20, 20)


def disable_huge_pages() -> None:
    """Let Arrow's memory grow by small pages; has to be said before pyarrow is loaded.

    Each thread that reads would else be given huge ones at once: for a short command it takes
    longer to clear them than to read the files.
    """
    os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")


class _PandasBlocker(MetaPathFinder):
    """Says that there is no pandas."""

    # The import machinery gives all three arguments; the name alone decides.
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Refuse pandas; leave everything else to the other finders."""
        if fullname == "pandas":
            raise ModuleNotFoundError(f"{fullname} is left out", name=fullname)
        return None


def load_pyarrow_without_pandas() -> None:
    """Load pyarrow's datasets without pandas.

    `import pyarrow.dataset` loads pandas only to learn whether it is there, which takes longer
    than everything else that such a command loads. pyarrow of this process then knows no pandas.
    """
    if "pyarrow.dataset" in sys.modules:
        return
    finder = _PandasBlocker()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow.dataset  # noqa: F401 (loaded for its effect)
    finally:
        sys.meta_path.remove(finder)
