"""Scripts for other frameworks."""
