"""How long a user waits: small runs, the start of Spark, arriving files, and the first load."""
