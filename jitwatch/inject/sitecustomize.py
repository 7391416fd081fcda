"""Python runs this at the start of every program under `jitwatch run`, then the user's own.

Its folder is first on PYTHONPATH. It takes jitwatch from JITWATCH_HOME, whatever environment the
program has, and leaves sys.path as the program would have found it. Nothing here may fail.
"""

import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _watch() -> None:
    if "jitwatch" not in sys.modules:
        home = os.path.join(os.environ["JITWATCH_HOME"], "jitwatch")
        spec = importlib.util.spec_from_file_location(
            "jitwatch", os.path.join(home, "__init__.py"), submodule_search_locations=[home]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules["jitwatch"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    from jitwatch.live import join_run

    join_run()


def _chain() -> None:
    """Run the sitecustomize that this one hides, and leave it in sys.modules."""
    ours = sys.modules.pop(__name__)
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or os.curdir) != _HERE]
    spec = importlib.util.find_spec(__name__)
    if spec is None or spec.loader is None:
        sys.modules[__name__] = ours
        return
    sys.modules[__name__] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


try:
    if os.environ.get("JITWATCH_RUN_DIR"):
        _watch()
except Exception as error:  # the program must run on
    print(f"jitwatch: this process is not watched: {error!r}", file=sys.stderr)
_chain()
