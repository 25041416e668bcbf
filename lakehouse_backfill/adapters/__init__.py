"""What is outside: Iceberg, Spark, local engines, Great Expectations, the operating system."""
