"""What people see of what happens: events become lines of a log and a picture of progress."""
