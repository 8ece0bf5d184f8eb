"""Read what the page, the API and the metrics show: from the store alone, in bounded reads, without Spark."""
