"""Stands for a package that a GPU node lacks: importing it fails, so a sweep writes files alone."""

raise ImportError("No database is installed on this node.")
