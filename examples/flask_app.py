r"""Flask under gunicorn: a limit for all views, a tighter one for the log-in, one exemption.

    pip install flask gunicorn
    gunicorn --threads 8 'examples.flask_app:create_app()'

Then, from another terminal:

    curl -s -o /dev/null -w '%{http_code}\n' 'localhost:8000/?[1-40]' | sort | uniq -c

      30 200      and one more for each 2 seconds that it takes
      10 429

`curl -i -X POST -d name=ann localhost:8000/login` passes three times a minute for each name,
wherever it comes from; then the error handler answers. `/health` is never refused.

All threads of one process share these limits. For several processes (`--workers 4`), give
the rules a `SharedKeyed` in place of the string, as `fastapi_app.py` does.
"""

from flask import Flask, Response, jsonify, request

from headgate.integrations import Request, Rule
from headgate.integrations.flask import RateLimit, Refused

rate_limit = RateLimit(rules=[Rule("30/minute", name="all")], headers=True)


def name_in_form(asked: Request) -> str:
    """Whose password is being guessed."""
    return f"login:{asked.native.form.get('name', '')}"


def create_app() -> Flask:
    app = Flask(__name__)
    rate_limit.init_app(app)

    @app.get("/")
    def index() -> str:
        return "hello\n"

    @app.post("/login")
    @rate_limit.limit(Rule("3/minute", name="login", key=name_in_form))
    def login() -> str:
        return f"hello {request.form.get('name', '')}\n"

    @app.get("/health")
    @rate_limit.exempt
    def health() -> str:
        return "well\n"

    @app.errorhandler(Refused)
    def refused(error: Refused) -> tuple[Response, int]:
        return jsonify(error=error.description, rule=error.outcome.rule.name), 429

    return app
