"""Migrations: rows of an old place become a product's table, proven before it is accepted."""
