"""Pure rules: values in, plans out. No clock, no database, no log; decoded section messages are values here."""
