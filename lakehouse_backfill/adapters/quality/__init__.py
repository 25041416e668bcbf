"""Great Expectations suites."""
