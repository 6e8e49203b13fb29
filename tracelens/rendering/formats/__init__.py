"""Output formats: console, HTML, Markdown, JSON, CSV, XLSX, notebooks."""
