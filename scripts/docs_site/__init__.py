"""The generated pages of the documentation site. `scripts/docs_hook.py` adds them while MkDocs builds."""
