"""Guards: what job code may not do, found before it runs."""
