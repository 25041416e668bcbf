"""Catalogs in a SQL database: how long it is waited for."""
