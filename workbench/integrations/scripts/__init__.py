"""Files in the words of other frameworks."""
