"""What makes streams live: read once, then forget."""
