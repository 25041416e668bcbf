"""Remove expired shadows, pins and versions."""
