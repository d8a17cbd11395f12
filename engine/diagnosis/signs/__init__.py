"""The signs in logs and answers that name a cause: a table for each theme."""
