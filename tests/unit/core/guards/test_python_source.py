"""What names of job code mean, and which code a transform reaches."""

from __future__ import annotations

from textwrap import dedent

import pytest

from lakehouse_backfill.core.guards.python_source import PythonSource
from lakehouse_backfill.errors import ConfigError

JOB = "jobs/orders/job.py"
HEAD = "from lakehouse_backfill.transforms import transform\n"


def source_of(**files: str) -> PythonSource:
    texts = {f"jobs/orders/{name}.py": dedent(text) for name, text in files.items()}
    return PythonSource(texts, JOB)


def used(source: PythonSource, file: str = JOB) -> set[tuple[str, str, int]]:
    return {(use.kind, use.name, use.line) for use in source.uses if use.file == file}


NAMES = [
    ("import os\nos.environ['A']", ("read", "os.environ", 2)),
    ("import os as o\no.getenv('A')", ("call", "os.getenv", 2)),
    ("from os import environ as e\ne", ("read", "os.environ", 2)),
    ("import os.path\nos.path.join('a')", ("call", "os.path.join", 2)),
    ("import a.b as c\nc.d()", ("call", "a.b.d", 2)),
    ("import a.b", ("import", "a.b", 1)),
    ("from a import b", ("import", "a.b", 1)),
    ("open('x')", ("call", "builtins.open", 1)),
    ("now = __import__('datetime').datetime.now\nnow()", ("call", "datetime.datetime.now", 2)),
    ("from importlib import import_module as i\ni('socket')", ("import", "socket", 2)),
    ("import os\ngetattr(os, 'environ').get('A')", ("call", "os.environ.get", 2)),
    ("from random import *\nshuffle([1])", ("call", "random.shuffle", 2)),
    ("import random\nr = random.Random(1)\nr.random()", ("call", "random.Random().random", 3)),
    ("def f(frame):\n    frame.sample(0.1).count()", ("call", ".sample", 2)),
    ("def f(frame):\n    frame.sample(0.1).count()", ("call", ".sample().count", 2)),
    ("def f(now=__import__('time').time):\n    now()", ("call", "time.time", 2)),
    ("try:\n    import a as j\nexcept ImportError:\n    import b as j\nj.x()", ("call", "b.x", 5)),
    ("import functools, uuid\nf = functools.partial(uuid.uuid4)\nf()", ("call", "uuid.uuid4", 3)),
    ("import uuid\nf = lambda: uuid.uuid4()", ("call", "uuid.uuid4", 2)),
    ("import uuid\n[uuid.uuid4() for _ in 'ab']", ("call", "uuid.uuid4", 2)),
    ("import time\nclass A:\n    at = time.time()", ("call", "time.time", 3)),
    ("def f():\n    return 1\nf()", ("call", "jobs/orders/job:f", 3)),
    ("with open('x') as f:\n    f.read()", ("call", "builtins.open().read", 2)),
    ("import time\nif (t := time.time)():\n    pass", ("call", "time.time", 2)),
]


@pytest.mark.parametrize(("text", "expected"), NAMES, ids=[text for text, _ in NAMES])
def test_a_name_is_resolved_to_what_it_means(text: str, expected: tuple[str, str, int]) -> None:
    assert expected in used(source_of(job=text))


def test_a_parameter_or_variable_hides_what_the_file_imports() -> None:
    source = source_of(job="import os\ndef f(os):\n    os.getenv('A')\nfor open in []:\n    open()")
    assert {name for kind, name, _ in used(source) if kind == "call"} == {".getenv"}


def test_annotations_and_typing_imports_are_no_uses() -> None:
    text = """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            import socket
        def f(a: socket.socket) -> socket.socket:
            b: socket.socket = a
            return b
    """
    assert not [use for use in source_of(job=text).uses if "socket" in use.name]


IMPORTS = [
    "import rates\nrates.draw()",
    "from rates import draw\ndraw()",
    "from rates import draw as d\nd()",
    "from jobs.orders.rates import draw\ndraw()",
    "import jobs.orders.rates\njobs.orders.rates.draw()",
    "from jobs.orders import rates as r\nr.draw()",
    "from . import rates\nrates.draw()",
    "from .rates import *\ndraw()",
    "from importlib import import_module\nimport_module('rates').draw()",
]


@pytest.mark.parametrize("text", IMPORTS)
def test_modules_of_the_project_are_found_however_they_are_imported(text: str) -> None:
    source = source_of(job=text, rates="def draw():\n    pass\n")
    assert ("call", "jobs/orders/rates:draw", text.count("\n") + 1) in used(source)


def test_what_a_module_of_the_project_imports_is_resolved_through_it() -> None:
    job = "from rates import F\nimport rates\nF.rand()\nrates.F.randn()"
    source = source_of(job=job, rates="from pyspark.sql import functions as F")
    calls = {(name, line) for kind, name, line in used(source) if kind == "call"}
    assert calls == {("pyspark.sql.functions.rand", 3), ("pyspark.sql.functions.randn", 4)}


@pytest.mark.parametrize(
    "line",
    [
        "from lakehouse_backfill import transform",
        "from lakehouse_backfill.transforms import transform",
        "import lakehouse_backfill as lhb\ntransform = lhb.transform",
    ],
)
def test_a_transform_is_found_however_its_decorator_is_imported(line: str) -> None:
    head = f"{line}\n@transform(name='orders', version='1.0.0', inputs=('a',))\n"
    assert source_of(job=head + "def new(c, a):\n    pass").transforms("orders", "1.0.0") == {
        "jobs/orders/job:new"
    }


def test_code_is_reached_through_helpers_any_number_of_calls_away() -> None:
    job = HEAD + dedent(
        """
        import rates
        @transform(name="orders", version="1.0.0", inputs=("a",))
        def old(context, a):
            return unused()
        @transform(name="orders", version="2.0.0", inputs=("a",))
        def new(context, a):
            return helper(a)
        def helper(a):
            return rates.Rates().of(a)
        def unused():
            return rates.never()
        """
    )
    rates = """
        import time
        def never():
            return time.time()
        class Rates:
            def of(self, a):
                return deep(a)
        def deep(a):
            return time.time()
    """
    source = source_of(job=job, rates=rates)
    assert source.reached("orders", "2.0.0") == {
        "jobs/orders/job:",
        "jobs/orders/rates:",
        "jobs/orders/job:new",
        "jobs/orders/job:helper",
        "jobs/orders/rates:Rates",
        "jobs/orders/rates:Rates.of",
        "jobs/orders/rates:deep",
    }
    clocks = [
        use for use in source.uses_of(source.reached("orders", "2.0.0")) if use.name == "time.time"
    ]
    assert [(use.file, use.line) for use in clocks] == [("jobs/orders/rates.py", 9)]


def test_a_function_that_an_unknown_decorator_gets_is_reached() -> None:
    job = HEAD + dedent(
        """
        from registry import register
        @register
        def hook():
            pass
        @transform(name="orders", version="1.0.0", inputs=("a",))
        def new(context, a):
            return a
        """
    )
    assert "jobs/orders/job:hook" in source_of(job=job).reached("orders", "1.0.0")


def test_everything_is_reached_when_the_transform_cannot_be_found_by_reading() -> None:
    source = source_of(job="def f():\n    pass")
    assert source.reached("orders", "1.0.0") == {"jobs/orders/job:", "jobs/orders/job:f"}


def test_what_a_value_is_made_of_is_followed_through_variables_and_functions() -> None:
    text = """
        from pyspark.sql import functions as F
        def salt(n):
            return F.floor(F.rand() * n)
        def job(frame):
            key = salt(8)
            return frame.repartition(10, key)
    """
    source = source_of(job=text)
    call = next(use for use in source.uses if use.name == ".repartition")
    assert "pyspark.sql.functions.rand" in source.names_inside(call.node.args[1])
    assert "pyspark.sql.functions.rand" not in source.names_inside(call.node.args[0])


def test_a_variable_that_is_bound_again_and_again_is_read_in_no_time() -> None:
    again = "".join(f"    df = df.withColumn('c{i}', F.rand())\n" for i in range(40))
    branches = "".join(
        f"    d{i} = d{i - 1}.a() if x else d{i - 1}.b()\n    if x:\n        d{i} = d{i - 1}.c()\n"
        for i in range(1, 30)
    )
    job = (
        "from pyspark.sql import functions as F\ndef job(df, x):\n"
        f"{again}    d0 = df\n{branches}    return d29"
    )
    names = {use.name for use in source_of(job=job).uses}
    assert "pyspark.sql.functions.rand" in names


def test_files_that_are_not_python_are_named_with_their_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        source_of(job="x = (\n", rates="\ny = = 1\n")
    assert [(fault.file, fault.line) for fault in caught.value.faults] == [
        ("jobs/orders/job.py", 1),
        ("jobs/orders/rates.py", 2),
    ]
