"""Blend and experts in, one dense model out."""
