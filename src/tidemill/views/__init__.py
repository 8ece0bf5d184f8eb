"""Views: queries whose results Tidemill keeps up to date, step by step."""
