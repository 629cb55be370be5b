"""What a campaign says: from the rows of its trials to numbers, a page, a table file."""
