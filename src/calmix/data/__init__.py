"""Tables and hub data sets → Examples with stable ids, label names and splits."""
