"""The screen of `sluicegate demo`.

`frame` and `summary` turn the demo into text with Rich's markup, and nothing else; `show` is the
shell with the terminal. Rich is imported there alone.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sluicegate.demo.failover_log import Failover
from sluicegate.demo.nginx import INSTALL
from sluicegate.demo.quota import CentralView, NodeView, QuotaDemo
from sluicegate.demo.quota_users import USERS, WORKERS, User
from sluicegate.demo.sparkline import AT_LIMIT, bar_height, draw
from sluicegate.demo.traffic import SERVICE
from sluicegate.demo.verdict import WARM_UP, Check, Record, Second

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["command", "commands", "frame", "show", "summary"]

_BEFORE_BARS, _AFTER_BARS = 16, 40  # columns
_RECENT = 30  # seconds, for the verdict on the screen
_ON_EVERY_PATH = (Path("/usr/local/bin"), Path("/usr/bin"))
_RECENT_FAILOVERS = 5  # lines of the closing table
_ROLE_COLOURS = {"active": "green", "standby": "default", "down": "red"}
_COLOURS = {"fresh": "green", "reused": "yellow", "safe": "yellow", "none": "red"}


def frame(demo: QuotaDemo, seconds: float | None, width: int, height: int, bars: str) -> str:
    """The screen, in Rich's markup. In one of few lines the nodes share a line."""
    lines = _lines(demo, seconds, width, bars, is_roomy=True)
    if len(lines) > height:
        lines = _lines(demo, seconds, width, bars, is_roomy=False)
    if len(lines) > height and demo.has_several_centrals:
        del lines[1]  # the legend: the centrals need the line
    return "\n".join(lines)


def _lines(
    demo: QuotaDemo, seconds: float | None, width: int, bars: str, *, is_roomy: bool
) -> list[str]:
    bar_width = max(width - _BEFORE_BARS - _AFTER_BARS, 8)
    title = "sluicegate demo"
    time = f"{demo.recorded} {'' if seconds is None else f'of {seconds:g} '}s, Ctrl-C ends it"
    below, above = range(1, AT_LIMIT + 1), range(AT_LIMIT + 1, len(bars))
    bars_head = f"admitted, last {bar_width} s"
    heads = f"{'asked/s':>8}{'admitted/s':>11}{'refused/s':>10}  held?"
    space = [""] if is_roomy else []
    # As wide as the name of a central, where each of them has a line.
    label_width = 10 if demo.has_several_centrals else 9
    if is_roomy:
        nodes = [_node(node, label_width) for node in demo.nodes()]
        if demo.nginx_address is None:
            nodes += ["[dim]no nginx with Lua found, which would be one of the nodes:[/]", INSTALL]
    else:
        nodes = [_nodes(demo.nodes(), label_width)]
    centrals = _centrals(demo) if demo.has_several_centrals else [_central(demo)]
    if is_roomy and demo.failovers:
        last = demo.failovers[-1]
        centrals.append(f"failovers {len(demo.failovers)}; the last {_failover(demo, last)}")
    lines = [
        f"[bold]{title}[/]{time.rjust(width - len(title))}",
        f"[dim]One limit for each user, on all nodes together:[/] {draw(below, bars)} "
        f"[dim]up to it,[/] {draw(above, bars)} [dim]saved up[/]",
        *centrals,
        *nodes,
        *space,
        f"[dim]{'user':8}{'limit':7} {bars_head:{bar_width}}{heads}[/]",
    ]
    for user in USERS:
        lines.append(_user(demo.record, user, bar_width, bars))
        lines.append(f"[dim]  {user.about}[/]")
    lines += [*space, "[bold]Try in another terminal:[/]"]
    lines += [f"  {line}" for line in commands(demo, width - 2)]
    if is_roomy and demo.nginx_address is not None:
        lines += [f"  {line}" for line in _tries_on_nginx(demo, demo.nginx_address)]
    return lines


def _central(demo: QuotaDemo) -> str:
    status, view = demo.central, demo.central_view
    if view.has_lost_its_port:
        return f"central  [red]dead[/]; another program has taken {demo.url}: start the demo anew"
    if view.pid is None:
        return "central  [red]dead[/]; it is started again in a moment, with the state it had"
    if not status.is_answering:
        return f"central  [red]does not answer[/]   process {view.pid}"
    role = "leads" if status.role == "active" else status.role
    return (
        f"central  [green]{role:7}[/] process {view.pid}, epoch {status.epoch}, slot {status.slot}"
    )


def _centrals(demo: QuotaDemo) -> list[str]:
    """A line for each of several centrals."""
    leader = demo.leader
    lines = []
    for central in demo.centrals():
        what = _member(central)
        if central == leader and demo.failovers:
            what += f", took over in {demo.failovers[-1].seconds:.1f} s"
        last = demo.last_leader
        if leader is None and last is not None and central.name == last.name:
            what = f"led until {max(demo.now - last.last, 0.0):.1f} s ago; {what}"
        lines.append(f"{central.name:10}[{_ROLE_COLOURS[central.role]}]{central.role:7}[/] {what}")
    return lines


def _member(central: CentralView) -> str:
    if central.has_lost_its_port:
        return "another program has taken its port: start the demo anew"
    if central.pid is None:
        return "it is started again in a moment"
    if central.role == "down":
        return f"process {central.pid} does not answer"
    return f"process {central.pid}, epoch {central.epoch}"


def _failover(demo: QuotaDemo, failover: Failover) -> str:
    return (
        f"at {demo.second_of(failover.begin):.1f} s: {failover.old} to {failover.new} "
        f"in {failover.seconds:.1f} s"
    )


def _node(node: NodeView, label_width: int) -> str:
    colour = _COLOURS[node.state]
    pids = " and ".join(
        f"{pid}{' (reports)' if pid == node.reporter else ''}" for pid in node.workers
    )
    missing = WORKERS - len(node.workers)
    if node.kind == "python":
        processes = f"processes {pids}" if node.workers else "no process"
    else:
        processes = "nginx" if node.master is None else f"nginx {node.master}"
        processes += f", workers {pids}" if node.workers else ", no worker"
    later = f"; {missing} to be started again" if missing else ""
    return f"{node.name:{label_width}}[{colour}]{node.state:7}[/] {processes}{later}"


def _nodes(nodes: Sequence[NodeView], label_width: int) -> str:
    """All nodes in one line."""
    shown = []
    for node in nodes:
        missing = WORKERS - len(node.workers)
        later = f" ({missing} restarting)" if missing else ""
        name = node.name if node.kind == "python" else f"{node.name} ({node.kind})"
        shown.append(f"{name} [{_COLOURS[node.state]}]{node.state}[/]{later}")
    return f"{'nodes':{label_width}}{', '.join(shown)}"


def _user(record: Record, user: User, bar_width: int, bars: str) -> str:
    seconds = list(record.seconds[user.name])[-bar_width:]
    drawn = draw((_height(second) for second in seconds), bars)
    last = seconds[-1] if seconds else Second(0, user.limit, user.burst_seconds, 0, 0)
    return (
        f"[bold]{user.name:8}[/]{_limit(last.limit):7} {' ' * (bar_width - len(seconds))}{drawn}"
        f"{last.asked:8}{last.admitted:11}{last.refused or '':>10}  "
        f"{_verdict(record.checks(user, _RECENT))}"
    )


def _height(second: Second) -> int:
    # A user without a limit gets all it asks for: that is neither below nor above.
    return bar_height(second.admitted, second.asked if second.limit is None else second.limit)


def _limit(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:g}/s"


def _verdict(checks: Sequence[Check]) -> str:
    if not checks:
        return "[dim]not yet[/]"
    broken = next((check for check in checks if not check.is_met), None)
    return "[green]yes[/]" if broken is None else f"[red]no: {broken.name}[/]"


def commands(demo: QuotaDemo, width: int) -> list[str]:
    """What to try, as lines that can be pasted into a terminal that stands anywhere.

    They are short, because a line that goes on in the next one is not pasted well.
    """
    folder, sluicegate = command()
    where = [f"PATH={folder}:$PATH"] if folder is not None else []
    where.append(f"U={demo.url}")
    if len(" ".join(where)) <= width:
        where = [" ".join(where)]
    setting = f"{sluicegate} limits set {SERVICE} greedy requests=400 --burst-seconds 1"
    tries = [*where, f"{setting} --url $U"]
    if demo.has_several_centrals:
        return tries + _tries_on_the_leader(demo)
    first = demo.nodes()[0]
    worker = first.reporter or next(iter(first.workers), None)
    if worker is not None:
        tries.append(_explained(f"kill -9 {worker}", "the other worker reports"))
    central = demo.central_view.pid
    if central is not None:
        stop, go_on = f"kill -STOP {central}", f"kill -CONT {central}"
        tries.append(_explained(f"{stop}; sleep 8; {go_on}", "the nodes go on"))
        tries.append(_explained(f"kill -9 {central}", "it is started again"))
    return tries


def _tries_on_the_leader(demo: QuotaDemo) -> list[str]:
    """Two lines in any case, so that the screen does not jump during a failover."""
    leader = demo.leader
    if leader is None:
        return ["[dim]# no central leads: they elect one, which takes about two seconds[/]", ""]
    # Two centrals are a majority only together.
    what = "another leads" if len(demo.centrals()) > 2 else "nobody leads meanwhile"
    stop, go_on = f"kill -STOP {leader.pid}", f"kill -CONT {leader.pid}"
    return [
        _explained(f"kill -9 {leader.pid}", f"the leader: {what}"),
        _explained(f"{stop}; sleep 8; {go_on}", "it wakes up as a standby"),
    ]


def _tries_on_nginx(demo: QuotaDemo, address: str) -> list[str]:
    """Two lines in any case, so that the screen does not jump while it is started again."""
    node = next(node for node in demo.nodes() if node.kind == "nginx")
    worker = node.reporter or next(iter(node.workers), None)
    kill = "" if worker is None else _explained(f"kill -9 {worker}", "nginx starts another")
    return [kill, _explained(f'curl -iH "X-User: greedy" {address}', "204, or 429")]


def _explained(words: str, what: str) -> str:
    return f"{words:50} [dim]# {what}[/]"


def command() -> tuple[Path | None, str]:
    """What another terminal must have in its PATH, and how sluicegate is called then."""
    python = Path(sys.executable)
    has_script = python.with_name("sluicegate").exists()
    folder = None if python.parent in _ON_EVERY_PATH else python.parent
    return folder, "sluicegate" if has_script else f"{python.name} -m sluicegate"


def summary(demo: QuotaDemo) -> str:
    """The closing table, in Rich's markup."""
    lines = [
        f"[dim]{'user':8}{'limit':7}{'asked':>8}{'admitted':>9}{'refused':>8}"
        f"{'over':>8}{'goal':>6}{'under':>8}{'goal':>6}  held[/]"
    ]
    for user in USERS:
        seconds = demo.record.seconds[user.name]
        checks = demo.record.checks(user)
        over = next((check for check in checks if check.name == "over"), None)
        under = next((check for check in checks if check.name == "under"), None)
        limit = seconds[-1].limit if seconds else user.limit
        lines.append(
            f"{user.name:8}{_limit(limit):7}{sum(second.asked for second in seconds):8}"
            f"{sum(second.admitted for second in seconds):9}"
            f"{sum(second.refused for second in seconds):8}"
            f"{_measured(over)}{_measured(under)}  {_verdict(checks)}"
        )
    lines += [
        "",
        f"over and under are parts of the limit, of the time after the first {WARM_UP} s: the",
        "most that passed beyond it and what was saved, and what was lost.",
    ]
    if demo.has_several_centrals:
        lines += _failovers(demo)
    if busy := demo.record.busy_seconds():
        lines.append(
            f"The machine held up workers or the central: {busy} of {demo.recorded - WARM_UP} s "
            "do not count for under."
        )
    return "\n".join([*lines, "What is counted, and what else to try: docs/demo.md"])


def _failovers(demo: QuotaDemo) -> list[str]:
    """Of several centrals, which leads, and the last failovers."""
    leader, failovers = demo.leader, demo.failovers
    lines = [
        f"centrals: {len(demo.centrals())}, leader: {'none' if leader is None else leader.name}, "
        f"failovers: {len(failovers)}"
    ]
    lines += [f"  {_failover(demo, failover)}" for failover in failovers[-_RECENT_FAILOVERS:]]
    if leaderless := demo.record.leaderless_seconds():
        lines.append(
            f"During and after a failover {leaderless} of {demo.recorded - WARM_UP} s do not "
            "count for under."
        )
    return lines


def _measured(check: Check | None) -> str:
    if check is None:
        return " " * 14
    # Less than nothing is nothing: a burst that was saved up is no merit.
    measured = f"{max(check.measured, 0.0):.1%}".replace("%", " %")
    goal = f"{check.goal:.0%}".replace("%", " %")
    return f"{measured:>8}{goal:>6}"


def show(demo: QuotaDemo, seconds: float | None, console: "Console", bars: str) -> None:
    """Draw the demo until its end."""
    from rich.live import Live
    from rich.text import Text

    with Live(console=console, screen=True, auto_refresh=False) as live:

        def draw_frame() -> None:
            lines = frame(demo, seconds, console.width, console.height, bars).splitlines()
            if len(lines) > console.height:
                lines[console.height - 1 :] = ["[yellow]the rest needs a larger terminal[/]"]
            text = Text.from_markup("\n".join(lines))
            text.no_wrap, text.overflow = True, "crop"
            live.update(text, refresh=True)

        demo.run(seconds, draw_frame)
