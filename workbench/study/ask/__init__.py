"""What a study asks: its file, its search space, where it starts from."""
