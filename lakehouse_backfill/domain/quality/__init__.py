"""Values of expectation suites: what can be counted of rows."""
