"""How streams live: session, checks, supervision. Knows queries and runs, no formats."""
