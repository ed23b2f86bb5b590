"""Tests of the measuring itself: A/A tests, planted slowdowns and bugs, features on a GPU."""
