"""Large and shared bodies."""
