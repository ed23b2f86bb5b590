"""Parts of the page Upload."""
