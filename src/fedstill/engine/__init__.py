"""Engines carry messages between an algorithm's server and its clients, and know nothing about algorithms."""
