"""What a plan says, to the modules that draw, explain or simulate one."""
