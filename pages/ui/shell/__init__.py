"""What is around every page: navigation, data, errors, warming."""
