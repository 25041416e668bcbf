"""Metrics in the text format of Prometheus: file, push, scrape."""
