"""Values of monitoring: metrics, where they go, and limits of alerts."""
