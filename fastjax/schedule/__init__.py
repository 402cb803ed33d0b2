"""What a plan says, to the modules that draw, explain, write or simulate one."""
