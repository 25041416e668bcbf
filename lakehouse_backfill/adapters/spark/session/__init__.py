"""The Spark session: Java, settings, local mode or Spark Connect, the write guard."""
