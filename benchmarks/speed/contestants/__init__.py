"""What is compared: each contestant is a process that plays rounds when it is told to."""
