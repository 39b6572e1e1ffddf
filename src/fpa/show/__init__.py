"""From results to what people see: names, tables, figures and reports. Nothing here computes a new number."""
