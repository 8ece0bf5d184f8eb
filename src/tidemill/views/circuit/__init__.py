"""Circuits: operators with stable ids, their rewrites, how they are explained and interpreted;
all of it pure.
"""
