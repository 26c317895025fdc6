"""Statistics, one method a file, each with its source."""
