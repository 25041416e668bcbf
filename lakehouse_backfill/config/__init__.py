"""Read and check the files that people write."""
