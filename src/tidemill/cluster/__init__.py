"""Coordinate nodes through the store: leases, leader, node list, partitions, locks."""
