"""The report of a campaign: from the rows of its trials to numbers, a page, a table file."""
