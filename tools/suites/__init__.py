"""Other people's test suites and clients against a running `skipqa serve`.

    python -m tools.suites                     all, in an environment of their own
    python -m tools.suites schemathesis curl   only these
    python -m tools.suites --env FOLDER        an environment that is kept for the next run

    __main__ ── server: a real one, with a key
        ├── environment: pinned suites, installed apart from this project
        ├── fuzz (fuzz_hooks): schemathesis over /openapi.json
        ├── pytests (inside/): LangChain's standard tests, the OpenAI client's own tests, and ours
        │                      with that client
        ├── replay (shapes/): requests as Open WebUI, lmms-eval and VLMEvalKit send them
        └── curl

Not part of the installed package.
"""
