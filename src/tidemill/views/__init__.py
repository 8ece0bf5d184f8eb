"""Views: queries whose results are kept up to date, step by step."""
