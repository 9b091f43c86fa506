"""Words that three rooms or more use: frozen records and values. Imports nothing of the other rooms."""
