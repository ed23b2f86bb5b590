"""Results as text: Markdown, HTML, SVG, CSV, terminal."""
