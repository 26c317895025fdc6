"""The pages of docs/results: what runs found, beside what was published; and the overview of all pages.

`data` is the Parquet file of a page, `runs` what the page's runs say together, `claims` and `answers` what became of
published claims, `folklore` of what is commonly said, `programs` what to set for a program. `page` and `overview` lay
them out as documents.
"""
