"""What a study answers: candidates confirmed over seeds, the choice, the files."""
