"""`sluicegate central` that notes when the machine held it up.

python -m tests.system.metered_central PAUSES central --listen ...
"""

import sys
from pathlib import Path

from sluicegate.cli.main import main
from sluicegate.demo.pauses import PauseMeter
from tests.system.pauses import PauseLog

if __name__ == "__main__":
    with PauseMeter(PauseLog(Path(sys.argv[1])).note):
        code = main(sys.argv[2:])
    sys.exit(code)
