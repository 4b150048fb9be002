"""What a question costs: FLOPs, memory and time, by formula, counted and measured."""
