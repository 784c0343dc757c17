"""Flower itself: its records, its programs as processes of ours, its polling."""
