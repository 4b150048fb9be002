"""`skipqa serve`: answers with evidence over HTTP.

    client ── guard ── app ── engine ══ worker processes, a pipeline each
                        │
                      store ══ index builds

`app.py` puts it together and is read first. One process speaks HTTP (`guard.py` refuses what is not
allowed, `chat.py`, `responses.py`, `ask.py`, `indexes.py` are the routes); it never opens a photo
and never runs a network. The `engine` hands questions to worker processes (`worker.py`), where a
crash costs one process, and waits for what they send back in plain frames (`frames.py`).
"""
