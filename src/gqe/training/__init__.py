"""Training of learned aggregators on labelled embeddings of any origin."""
