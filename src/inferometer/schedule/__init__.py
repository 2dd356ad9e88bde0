"""Which requests and tokens run in which sweep: what is asked, what comes back. Never imports torch."""
