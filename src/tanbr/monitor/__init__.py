"""Requests in, task mix out."""
