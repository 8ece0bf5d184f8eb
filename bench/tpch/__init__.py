"""TPC-H as 22 incremental views: steps that change orders with their line items."""
