r"""Flask under gunicorn: a limit for all views, a tighter one for the log-in, one exemption.

    pip install flask gunicorn
    gunicorn --workers 4 --threads 2 'examples.flask_app:create_app()'

Then, from another terminal:

    seq 40 | xargs -I{} curl -so /dev/null -w '%{http_code}\n' localhost:8000/ | sort | uniq -c

      30 200
      10 429

`curl -i -X POST -d name=ann localhost:8000/login` passes three times a minute for each name,
wherever it comes from; then the error handler answers. `/health` is never refused.

The four processes count in one table in shared memory. It outlives them: to start anew,
`python -c "from sluicegate import SharedKeyed; SharedKeyed.unlink('example-flask')"`.
"""

from flask import Flask, Response, jsonify, request

from sluicegate import SharedKeyed
from sluicegate.integrations import Request, Rule
from sluicegate.integrations.flask import RateLimit, Refused

# With rebuild, a release with another limit replaces the table of the one before.
everything = Rule(SharedKeyed("example-flask", "30/minute", rebuild=True), name="all")
logins = SharedKeyed("example-flask-login", "3/minute", rebuild=True)
rate_limit = RateLimit(rules=[everything], headers=True)


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
    @rate_limit.limit(Rule(logins, name="login", key=name_in_form))
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
