"""One small reader for each kind of corpus, all behind `knowledge.corpus.Source`."""
