"""What runs on the host, outside compiled programs: plans, their files, and statistics."""
