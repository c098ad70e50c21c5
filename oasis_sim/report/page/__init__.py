"""Reports for people: one document, as a page, as Markdown, as numbers."""
